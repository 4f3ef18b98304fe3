// HybridDrafter: one candidate tree out of many sources, built best-first by the probability that
// its paths are accepted, as far as its rows pay.
//
// A node's path probability is the expected number of tokens it adds, so the sum over a tree is its
// expected accepted tokens. With a budget of "auto" TreeSize says how many rows a step takes.
#pragma once

#include <vector>

#include "ptd/draft_sources.h"
#include "ptd/draft_tree.h"
#include "ptd/drafter.h"
#include "ptd/path_discount.h"
#include "ptd/step_cost.h"
#include "ptd/tree_size.h"

namespace ptd {

struct HybridOptions {
  int max_candidate_nodes = 64;
  // Rows by what they cost and what they promise, up to max_candidate_nodes; else always as many.
  bool auto_budget = false;
  int max_draft_nodes = 0;  // rows of PTD's own tree besides; 0 = none
  int width = 1;            // of PTD's tree
  int depth = 6;
  int successors = 8;            // of each row, remembered (1 to 8)
  bool prompt_outputs = false;   // remember those of the prompt's rows too
  bool keep_statistics = false;  // what was learned of the sources stays from request to request
  bool keep_tables = false;      // what the sources remember of texts stays, too
  int table_entries = 1 << 15;   // contexts that each table remembers
  std::uint32_t sources = ~0u;   // bit s: DraftSource s is used
  std::uint64_t seed = 0;        // of the draft tree's first tokens
  std::vector<TokenId> eos_ids;  // nothing is drafted after them
};

class HybridDrafter final : public Drafter {
 public:
  // A node of the last tree, in the order of its rows.
  struct PlannedNode {
    TokenId token;
    int parent;             // row
    float probability;      // that the whole path is accepted
    std::uint32_t sources;  // bit s: source s proposed it
    bool accepted;          // after observe()
  };
  struct SourceCounts {
    std::int64_t proposed = 0;  // nodes of trees that the source proposed (others may have, too)
    std::int64_t accepted = 0;
    std::int64_t alone = 0;  // accepted, and no other source proposed it
  };

  explicit HybridDrafter(HybridOptions options);

  DrafterNeeds needs() const override;
  void begin(Span<const TokenId> prompt) override;
  void propose(Span<const TokenId> committed, TreeBuilder& tree) override;
  void observe(const StepOutcome& outcome) override;
  void observe_prompt(int first, Span<const TokenId> outputs, int stride) override;
  void set_step_cost(Span<const int> rows, Span<const double> seconds,
                     Span<const double> seconds_per_token) override {
    cost_.fix(rows, seconds, seconds_per_token);
  }

  AcceptanceModel& model() { return model_; }
  const StepCost& cost() const { return cost_; }
  // Token of the last step's row 0, kNoToken before the first.
  TokenId root() const { return root_; }
  // Candidates of the last step: row i + 1 is nodes()[i].
  const std::vector<PlannedNode>& nodes() const { return planned_; }
  // Of this request, by source.
  const std::vector<SourceCounts>& source_counts() const { return counts_; }
  // Rows of each step of this request, candidates only.
  const std::vector<int>& budgets() const { return budgets_; }

 private:
  struct Frontier {
    float probability;
    int parent;
    TokenId token;
    std::uint32_t sources;
    bool operator<(const Frontier& other) const { return probability < other.probability; }
  };

  void expand(int row, int depth, float probability);
  // Whether the frontier alone has as many paths, all at least as probable as `bound`.
  bool filled_above(float bound, int room) const;
  void plan_tree(int budget, int max_depth);
  int choose_size(int prefix_len);
  void learn(const StepOutcome& outcome);
  void grow_draft_tree(const StepOutcome& outcome);
  void add_drafts(TreeBuilder& tree);

  HybridOptions options_;
  AcceptanceModel model_;
  DraftSources sources_;
  DraftTree draft_tree_;
  StepCost cost_;
  TreeSize tree_size_;
  PathDiscount path_discount_;
  float discount_ = 1.0f;        // of the tree at hand
  std::vector<float> promises_;  // of planned_
  int prefix_len_ = 0;           // of the step at hand
  TokenId root_ = kNoToken;      // its row 0
  std::vector<TokenId> prompt_;
  int prompt_shown_ = 0;
  ContextKey prompt_key_;
  std::vector<TokenId> runners_up_;
  std::vector<PlannedNode> planned_;
  std::vector<DraftSources::Place> places_;  // by row, root first
  std::vector<int> depths_;
  std::vector<Frontier> frontier_;  // a heap
  float least_ = 0.0f;              // paths less probable are not worth remembering
  std::vector<ContextKey> draft_keys_;
  std::vector<NodeId> draft_rows_;
  std::vector<TokenId> predictions_;
  std::vector<bool> on_path_;
  AcceptanceModel::Node node_;
  std::vector<SourceCounts> counts_;
  std::vector<int> budgets_;
};

}  // namespace ptd
