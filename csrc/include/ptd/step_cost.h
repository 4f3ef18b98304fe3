// StepCost: what a step of n rows takes, learned from the steps that were run.
//
// A given curve (relative to one row) is the first guess. Measured steps correct it around their
// number of rows; between measured counts the correction is interpolated, beyond them it is kept.
// One slow step (another process, a page fault) moves the curve little.
#pragma once

#include <array>
#include <vector>

#include "ptd/types.h"

namespace ptd {

class StepCost {
 public:
  static constexpr std::array<int, 16> kKnots{1,  2,  4,  8,  12, 16,  20,  24,
                                              32, 40, 48, 64, 96, 128, 192, 256};

  // `relative`: cost at each knot in units of one row's, not descending; empty: every step costs
  // the same.
  explicit StepCost(const std::vector<double>& relative);

  void observe(int rows, double seconds);
  // Seconds of a step with that many rows; of the given curve's unit before anything was measured.
  double of(int rows) const;
  bool measured() const { return measured_ > 0; }
  // Steps observed at a knot (for reports).
  const std::array<int, kKnots.size()>& counts() const { return counts_; }

 private:
  void refresh();

  std::array<double, kKnots.size()> relative_;
  std::array<double, kKnots.size()> seconds_{};  // decayed mean of the steps nearest to a knot
  std::array<int, kKnots.size()> counts_{};
  std::array<double, kMaxTreeNodes + 1> of_{};
  int measured_ = 0;
};

}  // namespace ptd
