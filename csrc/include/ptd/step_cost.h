// StepCost: what a step of n rows takes: measured beforehand, or learned from the steps that were
// run.
//
// Measured beforehand (`fix`) is better: trees are sized alike from the first step on, and a busy
// moment of the machine changes nothing. Else every step costs the same at first, and the steps
// that were run say what theirs takes; between such numbers of rows it is interpolated, beyond them
// it stays. One slow step moves the curve little.
#pragma once

#include <array>

#include "ptd/types.h"

namespace ptd {

class StepCost {
 public:
  static constexpr std::array<int, 16> kKnots{1,  2,  4,  8,  12, 16,  20,  24,
                                              32, 40, 48, 64, 96, 128, 192, 256};

  StepCost() { refresh(); }

  // From now on the cost is this and nothing is learned; see Drafter::set_step_cost. Between two
  // numbers of rows it is interpolated, beyond the last it goes on as between the last two.
  // Throws InvalidArgument where lengths differ, rows do not rise or a number is not sensible.
  void fix(Span<const int> rows, Span<const double> seconds, Span<const double> seconds_per_token);
  bool fixed() const { return fixed_; }

  void observe(int rows, double seconds);
  // Seconds of a step with that many rows; 1 before anything is known.
  double of(int rows, int prefix_len = 0) const;
  // Steps observed at a knot (for reports).
  const std::array<int, kKnots.size()>& counts() const { return counts_; }

 private:
  void refresh();

  std::array<double, kKnots.size()> seconds_{};  // decayed mean of the steps nearest to a knot
  std::array<int, kKnots.size()> counts_{};
  std::array<double, kMaxTreeNodes + 1> of_{};
  std::array<double, kMaxTreeNodes + 1> per_token_{};
  bool fixed_ = false;
};

}  // namespace ptd
