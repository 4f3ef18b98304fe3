// Session: one request. It owns the tokens, the stop rules and the statistics, and runs the loop
//   while (!finished()) { plan(block); <forward on any runtime>; commit(output); }
// It knows no tensors: the caller owns the memory of plan and output.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "ptd/drafter.h"
#include "ptd/step_plan.h"
#include "ptd/types.h"

namespace ptd {

enum class FinishReason { kNone, kStop, kLength };

// A stop rule that the core cannot know: what a token adds to the text, for one. It is asked about
// every token that enters the output, in order, those inside an accepted path too; true ends the
// output with that token. An exception fails the request and nothing else.
class StopCheck {
 public:
  virtual ~StopCheck() = default;
  virtual bool stops_at(TokenId token) = 0;
};

// The next token of a row, asked for when the walk has come to that row and its token is in the
// output: what the rows further down hold may depend on what was accepted so far.
class RowTokens {
 public:
  virtual ~RowTokens() = default;
  virtual TokenId next(NodeId row) = 0;
};

struct SessionParams {
  int max_new_tokens = 128;  // >= 0; 0 finishes at once
  float temperature = 0.0f;  // 0 = greedy
  int top_k = 0;             // 0 = off
  float top_p = 1.0f;        // 1 = off
  float min_p = 0.0f;        // 0 = off
  std::uint64_t seed = 0;
  std::vector<TokenId> stop_ids;          // the first one ends the output and stays in it
  std::shared_ptr<StopCheck> stop_check;  // null: no further rule
};

struct SessionLimits {
  int max_seq_len = 0;            // prompt and output together
  int max_path = 64;              // deepest row of a tree; sizes commit_src
  int top_k = 0;                  // successors a row in the output block (>= the drafter's needs)
  int max_nodes = kMaxTreeNodes;  // rows the caller has room for, root included (1..256)
  int vocab_size = 0;             // a drafter's token must be below it; 0 = unchecked
  std::vector<int> node_buckets;  // ascending row counts a step is padded to; empty = exact
};

// Counters over the steps of a request; prefill is not a step.
struct SessionStats {
  std::int64_t steps = 0;
  std::int64_t tokens = 0;      // emitted
  std::int64_t hit_steps = 0;   // steps with a non-empty candidate tree
  std::int64_t hit_tokens = 0;  // tokens emitted on those steps
  std::int64_t candidate_nodes = 0;
  std::int64_t draft_nodes = 0;
  std::int64_t accepted = 0;                     // emitted tokens that were candidates
  std::vector<std::int64_t> accepted_histogram;  // [k]: steps that accepted k candidates
};

struct StepResult {
  Span<const TokenId> tokens;  // emitted by this step; valid until the next commit
  int accepted = 0;            // how many of them were candidates
};

class Session {
 public:
  // Throws InvalidArgument for an empty prompt, a prompt that fills the context, limits out of
  // range, a drafter that asks for more than they allow, and here as everywhere for tokens that are
  // none: below 0 (an output's -1 apart) or not below a vocab_size that was given.
  Session(std::vector<TokenId> prompt, std::shared_ptr<Drafter> drafter, SessionParams params,
          SessionLimits limits);

  bool finished() const { return finish_reason_ != FinishReason::kNone; }
  FinishReason finish_reason() const { return finish_reason_; }

  // Hands the drafter the model's outputs for prompt rows from `first` on, [n, 1 + top_k]; before
  // the first plan().
  void observe_prompt(int first, Span<const TokenId> outputs);

  // Draws the next tree and packs it. `block` must hold plan_bytes(); returns the node bucket.
  int plan(unsigned char* block, std::size_t block_size);
  std::size_t plan_bytes() const;  // of the largest bucket

  // Takes the step's output, [bucket, 1 + top_k]: walks, accepts, emits through the stop rules and
  // lets the drafter learn. Throws NonFiniteLogits when a row of the path has no next token. A step
  // that throws fails the session; its output and counters stay as they were before the step.
  StepResult commit(Span<const TokenId> output);
  // The same with Algorithm 2's walk over processed distributions [n_verify, vocab].
  StepResult commit_recursive(Span<const TokenId> output, Span<const double> probs, int vocab);
  // The same with next tokens asked for one at a time: of the root, then of the first child that
  // holds the token just emitted, and so on. None is asked for that could not enter the output, so
  // there are as many calls as tokens. Of `output` the drafter learns, the walk reads nothing.
  StepResult commit_lazily(Span<const TokenId> output, RowTokens& rows);

  // KV rows that are committed once the pending moves ran: prompt + emitted - 1.
  int kv_len() const { return static_cast<int>(tokens_.size()) - 1; }
  Span<const TokenId> tokens() const { return tokens_; }
  Span<const TokenId> output_tokens() const;
  int prompt_len() const { return prompt_len_; }
  const TreeBuilder& tree() const { return tree_; }
  // Rows whose tokens the last step accepted, from the root down. The step's tokens are the next
  // tokens of row 0 and of these rows.
  Span<const NodeId> accepted_rows() const { return path_; }
  const SessionStats& stats() const { return stats_; }

 private:
  void reserve();
  template <typename Emit>
  StepResult finish_step(Span<const TokenId> output, const Emit& emit_step);
  void check_output(Span<const TokenId> output) const;
  int bucket_for(int n_nodes) const;
  int emit_path(TokenId last_token);
  int emit_lazily(RowTokens& rows);
  NodeId child_of(NodeId row, TokenId token) const;
  [[noreturn]] void throw_not_finite() const;
  bool emit(TokenId token);
  void require_planned() const;

  std::shared_ptr<Drafter> drafter_;
  SessionParams params_;
  SessionLimits limits_;
  int max_nodes_ = 1;  // rows of a step, root included
  std::size_t max_accepted_ = kMaxTreeNodes;
  float successor_top_p_ = 0.0f;
  int prompt_len_ = 0;
  std::vector<TokenId> tokens_;
  TreeBuilder tree_;
  bool planned_ = false;
  std::chrono::steady_clock::time_point planned_at_;
  bool failed_ = false;
  std::uint64_t serial_;  // names this session to its drafter
  int bucket_ = 0;
  std::vector<NodeId> path_;
  std::vector<std::int32_t> commit_src_;
  FinishReason finish_reason_ = FinishReason::kNone;
  SessionStats stats_;
};

}  // namespace ptd
