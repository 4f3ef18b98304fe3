// PathDiscount: what a path's nodes below the first count, by how well the text's paths hold.
//
// A path's nodes share their luck, and the paths that look best are those that were judged too
// well: each lower node counts less than its probability says. Where text repeats itself the
// opposite is true, and long paths hold: there the discount goes away.
#pragma once

#include <algorithm>

namespace ptd {

class PathDiscount {
 public:
  // Forgets what was observed.
  void begin() { *this = PathDiscount(); }

  // From kUsual to 1, times a node's probability for each node above it but the root.
  float value() const {
    const double held = (held_ + kUsual * kBelief) / (expected_ + kBelief);
    return static_cast<float>(std::clamp(held, kUsual, 1.0));
  }

  // Before the nodes of a step: those of older ones count less and less.
  void begin_step() {
    expected_ *= kMemory;
    held_ *= kMemory;
  }

  // A node whose parent was accepted.
  //   probability: that it would be, too, without the discount.
  void observe(double probability, bool accepted) {
    expected_ += probability;
    held_ += accepted ? 1.0 : 0.0;
  }

 private:
  // Chosen on other prompts than those of the benchmarks.
  static constexpr double kUsual = 0.85;
  static constexpr double kBelief = 8.0;   // nodes' worth of it
  static constexpr double kMemory = 0.97;  // a step's weight in the sums, one step later

  double expected_ = 0.0;
  double held_ = 0.0;
};

}  // namespace ptd
