#include "ptd/tree_size.h"

#include <algorithm>

namespace ptd {
namespace {

// Tokens that a verified row is worth in later steps, for its answer is remembered: where text is
// drafted well. It falls to nothing as the tokens of a step do to one.
constexpr double kLaterTokens = 0.01;
constexpr double kFullTokens = 1.5;
constexpr double kFirstSteps = 5.0;  // steps' worth of belief that it will be drafted well
constexpr double kBelief = 0.5;      // accepted nodes' worth of belief in the probabilities
constexpr double kLenience = 2.5;    // so many times too much may be promised and still be believed
constexpr double kMostTrust = 2.0;   // times what is promised
constexpr double kMemory = 0.97;     // a step's weight in the sums, one step later

}  // namespace

double TreeSize::later_tokens() const {
  const double mean = (tokens_ + kFirstSteps * kFullTokens) / (steps_ + kFirstSteps);
  return kLaterTokens * std::clamp((mean - 1.0) / (kFullTokens - 1.0), 0.0, 1.0);
}

// A text that cannot be foretold would else pay for rows that are each less likely than they seem.
// A little too much is promised of any text, by small trees most, and they would become smaller
// yet. Where more comes true than was promised, as in text that repeats itself, that is believed.
double TreeSize::honesty() const {
  const double kept = (accepted_ + kBelief) / (promised_ + kBelief);
  return std::clamp(kept, std::min(1.0, kLenience * kept), kMostTrust);
}

int TreeSize::choose(Span<const float> probabilities, int other_rows, int prefix_len,
                     const StepCost& cost) {
  const int most = static_cast<int>(probabilities.size());
  const double later = later_tokens();
  const double honest = honesty();
  const double rate = seconds_ > 0.0 ? tokens_ / seconds_ : 0.0;
  chosen_ = kMemory * chosen_ + 1.0;
  int best = 0;
  int usual = 0;  // best for the steps of late
  double best_gain = 0.0;
  double usual_rate = 0.0;
  double expected = 0.0;
  for (int n = 0; n < kMaxTreeNodes; ++n) {
    if (n > 0 && n <= most) {
      expected +=
          later + honest * static_cast<double>(probabilities[static_cast<std::size_t>(n - 1)]);
    }
    double& mean = expected_[static_cast<std::size_t>(n)];
    mean = kMemory * mean + expected;
    if (n > most) continue;
    const double seconds = cost.of(1 + n + other_rows, prefix_len);
    const double gain = rate > 0.0 ? 1.0 + expected - rate * seconds : (1.0 + expected) / seconds;
    if (n == 0 || gain > best_gain) {
      best_gain = gain;
      best = n;
    }
    const double mean_rate = (1.0 + mean / chosen_) / seconds;
    if (mean_rate > usual_rate) {
      usual_rate = mean_rate;
      usual = n;
    }
  }
  return std::max(best, usual);
}

void TreeSize::observe(double promised, int accepted, int tokens, double seconds) {
  steps_ = kMemory * steps_ + 1.0;
  promised_ = kMemory * promised_ + promised;
  accepted_ = kMemory * accepted_ + accepted;
  tokens_ = kMemory * tokens_ + tokens;
  seconds_ = kMemory * seconds_ + seconds;
}

}  // namespace ptd
