#include "ptd/step_cost.h"

#include <algorithm>
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

StepCost::StepCost(const std::vector<double>& relative) {
  if (!relative.empty() && relative.size() != kKnots.size()) {
    throw InvalidArgument::for_field("len(cost_curve)", static_cast<long long>(relative.size()),
                                     std::to_string(kKnots.size()) + " numbers, or none");
  }
  for (std::size_t k = 0; k < kKnots.size(); ++k)
    relative_[k] = relative.empty() ? 1.0 : relative[k];
  refresh();
}

void StepCost::observe(int rows, double seconds) {
  if (!(seconds > 0.0) || rows < 1) return;
  const std::size_t k = knot_of(rows);
  // As if it had had the knot's rows.
  const double at_knot = seconds * of_[static_cast<std::size_t>(kKnots[k])] /
                         of_[static_cast<std::size_t>(std::min(rows, kMaxTreeNodes))];
  double& mean = seconds_[k];
  if (counts_[k] < kFirstSteps) {
    mean = counts_[k] == 0 ? at_knot : std::min(mean, at_knot);
  } else {
    mean += kRate * (std::min(at_knot, kOutlier * mean) - mean);
  }
  ++counts_[k];
  ++measured_;
  refresh();
}

void StepCost::refresh() {
  // The correction seconds / relative at the measured knots, interpolated over the rows.
  double last_correction = 1.0;
  int last_rows = 0;
  std::size_t next = 0;
  std::array<double, kKnots.size()> correction{};
  for (std::size_t k = 0; k < kKnots.size(); ++k) {
    while (next < kKnots.size() && (counts_[next] == 0 || next < k)) ++next;
    if (counts_[k] > 0) {
      last_correction = correction[k] = seconds_[k] / relative_[k];
      last_rows = kKnots[k];
    } else if (next == kKnots.size()) {
      correction[k] = last_correction;
    } else {
      const double ahead = seconds_[next] / relative_[next];
      const double share = static_cast<double>(kKnots[k] - last_rows) / (kKnots[next] - last_rows);
      correction[k] = last_rows == 0 ? ahead : last_correction + share * (ahead - last_correction);
    }
  }
  std::size_t k = 0;
  for (int rows = 1; rows <= kMaxTreeNodes; ++rows) {
    while (k + 1 < kKnots.size() && rows >= kKnots[k + 1]) ++k;
    double cost = correction[k] * relative_[k];
    if (k + 1 < kKnots.size()) {
      const double share = static_cast<double>(rows - kKnots[k]) / (kKnots[k + 1] - kKnots[k]);
      cost += share * (correction[k + 1] * relative_[k + 1] - cost);
    }
    // More rows never cost less: what was measured otherwise is noise.
    const auto at = static_cast<std::size_t>(rows);
    of_[at] = rows == 1 ? cost : std::max(cost, of_[at - 1]);
  }
}

double StepCost::of(int rows) const {
  return of_[static_cast<std::size_t>(std::clamp(rows, 1, kMaxTreeNodes))];
}

}  // namespace ptd
