// PTDDrafter: Progressive Tree Drafting. Candidates are retrieved from the pool by the last token;
// the draft tree grows by the model's own predictions and feeds the pool.
// Source: the PTD paper, Algorithm 1.
#pragma once

#include <vector>

#include "ptd/candidate_pool.h"
#include "ptd/draft_tree.h"
#include "ptd/drafter.h"

namespace ptd {

struct PTDOptions {
  int width = 4;                 // children a node, subtree roots
  int depth = 6;                 // a subtree this high loses its root
  int max_draft_nodes = 96;      // draft rows a step
  int max_candidate_nodes = 60;  // candidate rows a step
  int pool_nodes_per_key = 60;
  int pool_max_keys = 4096;
  // Merge the verified rows too: the root and the candidates, each with its own prediction as a
  // child, go into the pool as the draft tree does. Pays where the draft tree is small.
  bool recycle_verified = false;
  // Keep the pool from request to request; the caps hold all the same.
  bool share_pool = false;
  std::uint64_t seed = 0;        // of the initial chains; output never depends on it
  std::vector<TokenId> eos_ids;  // nothing is drafted after them
};

class PTDDrafter final : public Drafter {
 public:
  explicit PTDDrafter(PTDOptions options);

  DrafterNeeds needs() const override;
  void begin(Span<const TokenId> prompt) override;
  void propose(Span<const TokenId> committed, TreeBuilder& tree) override;
  void observe(const StepOutcome& outcome) override;

  const PTDOptions& options() const { return options_; }
  const DraftTree& draft_tree() const { return draft_tree_; }
  const CandidatePool& pool() const { return pool_; }
  // The chains that the draft tree was last planted with.
  const std::vector<std::vector<TokenId>>& initial_chains() const { return chains_; }

 private:
  void plant();
  void recycle(const StepOutcome& outcome);

  PTDOptions options_;
  DraftTree draft_tree_;
  CandidatePool pool_;
  std::vector<TokenId> seed_tokens_;  // the prompt, EOS left out
  std::vector<std::vector<TokenId>> chains_;
  std::uint64_t chain_draws_ = 0;
  std::vector<CandidateNode> candidates_;
  std::vector<NodeId> step_rows_;  // step row of each retrieved candidate, or of each draft row
  std::vector<TokenId> predictions_;
  TokenTree verified_;  // scratch of recycle
  std::vector<NodeId> verified_rows_;
};

}  // namespace ptd
