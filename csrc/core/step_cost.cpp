#include "ptd/step_cost.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace ptd {
namespace {

constexpr double kRate = 0.1;     // weight of the newest step in a knot's mean
constexpr double kOutlier = 1.5;  // a step counts as this many times the mean at most
constexpr int kFirstSteps = 3;    // of a knot: their least, for the first ones warm up

std::size_t knot_of(int rows) {
  std::size_t k = 0;
  const auto& knots = StepCost::kKnots;
  while (k + 1 < knots.size() && rows > (knots[k] + knots[k + 1]) / 2) ++k;
  return k;
}

}  // namespace

void StepCost::fix(Span<const int> rows, Span<const double> seconds,
                   Span<const double> seconds_per_token) {
  const std::size_t n = rows.size();
  if (n == 0 || seconds.size() != n || seconds_per_token.size() != n) {
    throw InvalidArgument(
        "step cost: rows, seconds and seconds_per_token differ in length or are empty: pass one of "
        "each for every size of step.");
  }
  for (std::size_t i = 0; i < n; ++i) {
    const bool rises = rows[i] >= 1 && (i == 0 || rows[i] > rows[i - 1]);
    if (!rises || !std::isfinite(seconds[i]) || seconds[i] <= 0.0 ||
        !std::isfinite(seconds_per_token[i]) || seconds_per_token[i] < 0.0) {
      throw InvalidArgument("step cost: entry " + std::to_string(i) + " (" +
                            std::to_string(rows[i]) +
                            " rows) is not valid: rows must rise from 1 on, seconds be above 0, "
                            "seconds_per_token not below.");
    }
  }
  const auto line = [&](Span<const double> y, int at) {
    std::size_t i = 0;
    while (i + 2 < n && at > rows[i + 1]) ++i;
    if (n == 1 || at <= rows[0]) return y[0];
    const double share = static_cast<double>(at - rows[i]) / (rows[i + 1] - rows[i]);
    return y[i] + share * (y[i + 1] - y[i]);
  };
  for (int r = 1; r <= kMaxTreeNodes; ++r) {
    // More rows never cost less: what was measured otherwise is noise.
    const auto at = static_cast<std::size_t>(r);
    of_[at] = r == 1 ? line(seconds, r) : std::max(line(seconds, r), of_[at - 1]);
    per_token_[at] = r == 1 ? line(seconds_per_token, r)
                            : std::max(line(seconds_per_token, r), per_token_[at - 1]);
  }
  fixed_ = true;
}

void StepCost::observe(int rows, double seconds) {
  if (fixed_ || !(seconds > 0.0) || rows < 1) return;
  const std::size_t k = knot_of(rows);
  double& mean = seconds_[k];
  if (counts_[k] < kFirstSteps) {
    mean = counts_[k] == 0 ? seconds : std::min(mean, seconds);
  } else {
    mean += kRate * (std::min(seconds, kOutlier * mean) - mean);
  }
  ++counts_[k];
  refresh();
}

void StepCost::refresh() {
  std::array<int, kKnots.size()> known{};  // knots with measured steps
  std::size_t n = 0;
  for (std::size_t k = 0; k < kKnots.size(); ++k) {
    if (counts_[k] > 0) known[n++] = static_cast<int>(k);
  }
  std::size_t i = 0;
  for (int rows = 1; rows <= kMaxTreeNodes; ++rows) {
    double cost = n == 0 ? 1.0 : seconds_[static_cast<std::size_t>(known[i])];
    if (n > 0 && i + 1 < n && rows > kKnots[static_cast<std::size_t>(known[i])]) {
      const int below = kKnots[static_cast<std::size_t>(known[i])];
      const auto above = static_cast<std::size_t>(known[i + 1]);
      const double share = static_cast<double>(rows - below) / (kKnots[above] - below);
      cost += share * (seconds_[above] - cost);
      if (rows == kKnots[above]) ++i;
    }
    // More rows never cost less: what was measured otherwise is noise.
    const auto at = static_cast<std::size_t>(rows);
    of_[at] = rows == 1 ? cost : std::max(cost, of_[at - 1]);
  }
}

double StepCost::of(int rows, int prefix_len) const {
  const auto at = static_cast<std::size_t>(std::clamp(rows, 1, kMaxTreeNodes));
  return of_[at] + per_token_[at] * prefix_len;
}

}  // namespace ptd
