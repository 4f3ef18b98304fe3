// Drafter: proposes the tree of a step and learns from its outcome. It can only add rows, it never
// sees nor alters acceptance: so every drafter is lossless by construction.
#pragma once

#include <atomic>

#include "ptd/step_plan.h"
#include "ptd/types.h"

namespace ptd {

struct DrafterNeeds {
  int max_nodes = 0;  // most rows it ever proposes, root not counted
  int top_k = 0;      // successors a row it wants to see besides the next token
  // Most accepted candidates a step is credited with, 0 = all. For published programs that emit
  // less than was verified; the output is the same in more steps.
  int max_accepted = 0;
  bool prompt_outputs = false;  // wants observe_prompt(): costs the model's head over the prompt
  // Successors behind the smallest set that holds this share of a row's probability come as -1;
  // 0 = all top_k come. A runtime that does not know it gives all of them: a slower draft, no other
  // output.
  float top_p = 0.0f;
  bool step_cost = false;  // wants set_step_cost(): it sizes its trees by what rows cost
};

// What a step produced. Views are valid during observe() only.
struct StepOutcome {
  const TreeBuilder* tree = nullptr;
  Span<const TokenId> outputs;     // [n_nodes, 1 + top_k]: next token (or -1), then top-k ids or -1
  int stride = 1;                  // 1 + top_k
  Span<const NodeId> accepted;     // rows of the accepted path, root excluded
  Span<const TokenId> new_tokens;  // tokens the step added to the output
  double seconds = 0.0;            // from the end of plan() to commit(): what the rows cost

  TokenId next_token(NodeId row) const { return outputs[static_cast<std::size_t>(row * stride)]; }
};

// A drafter serves one session at a time: beginning a session takes it over from the one before,
// whose next plan() or commit() then throws std::logic_error. So does a call from a second thread.
class Drafter {
 public:
  Drafter() = default;
  Drafter(const Drafter&) = delete;
  Drafter& operator=(const Drafter&) = delete;
  virtual ~Drafter() = default;
  virtual DrafterNeeds needs() const = 0;
  // A new request: forget the last one.
  virtual void begin(Span<const TokenId> prompt) = 0;
  // `committed` = prompt and output so far; its last token is the tree's root.
  virtual void propose(Span<const TokenId> committed, TreeBuilder& tree) = 0;
  virtual void observe(const StepOutcome& outcome) = 0;
  // What the model answers to the prompt's rows, in order, as many calls as the prefill has parts:
  // outputs [n, stride], of the prompt's tokens at first, first + 1, ... The last token of the
  // prompt is never among them (it is the root of the first step), nor are rows that a kept prefix
  // spared. Only called where `needs` asks for it.
  virtual void observe_prompt(int /*first*/, Span<const TokenId> /*outputs*/, int /*stride*/) {}
  // What a step takes, measured by the runtime between requests: seconds[i] with rows[i] rows
  // behind an empty prefix, and seconds_per_token[i] more for each token of the prefix. Rows rise.
  virtual void set_step_cost(Span<const int> /*rows*/, Span<const double> /*seconds*/,
                             Span<const double> /*seconds_per_token*/) {}

 private:
  friend class DrafterLease;
  std::atomic<bool> in_use_{false};
  std::uint64_t owner_ = 0;  // serial number of the session that began last
};

// Plain decoding: the root alone.
class AutoregressiveDrafter final : public Drafter {
 public:
  DrafterNeeds needs() const override { return {}; }
  void begin(Span<const TokenId>) override {}
  void propose(Span<const TokenId>, TreeBuilder&) override {}
  void observe(const StepOutcome&) override {}
};

}  // namespace ptd
