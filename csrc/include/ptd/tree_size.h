// TreeSize: how many of a tree's nodes a step takes, by what they promise and what they cost.
//
// The nodes come best first, each with the probability that its path is accepted. A step takes the
// larger of two sizes:
//   - the one that maximises expected tokens(n) - rate * seconds(n), where `rate` is the tokens a
//     second of late: what is best in the long run if each step stands alone (Dinkelbach's argument
//     for ratios);
//   - the one that would have been best for all steps of late alike, by their mean expectation: a
//     small tree leaves little behind for later ones, which the first does not see.
// None at all is among the choices, and what they come to where little of what was promised came
// true.
#pragma once

#include <array>

#include "ptd/step_cost.h"
#include "ptd/types.h"

namespace ptd {

class TreeSize {
 public:
  // Forgets what was observed.
  void begin() { *this = TreeSize(); }

  // Nodes to take, 0 to probabilities.size() (at most kMaxTreeNodes - 1).
  //   probabilities: of the paths, falling.
  //   other_rows: that the step has besides root and nodes.
  int choose(Span<const float> probabilities, int other_rows, int prefix_len, const StepCost& cost);

  // What came of a step.
  //   promised: sum of its nodes' probabilities.  accepted, tokens: counts.
  //   seconds: what it costs by the cost curve (a hiccup of the machine is no property of the
  //   text).
  void observe(double promised, int accepted, int tokens, double seconds);

 private:
  double later_tokens() const;
  double honesty() const;

  // Sums over steps, older ones counting less and less.
  double steps_ = 0.0;
  double tokens_ = 0.0;
  double seconds_ = 0.0;
  double promised_ = 0.0;
  double accepted_ = 0.0;
  double chosen_ = 0.0;                           // steps in expected_
  std::array<double, kMaxTreeNodes> expected_{};  // accepted tokens with the first n nodes
};

}  // namespace ptd
