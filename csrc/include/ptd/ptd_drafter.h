// PTDDrafter: Progressive Tree Drafting. Candidates are retrieved from the pool by the last token;
// the draft tree grows by the model's own predictions and feeds the pool.
// Source: the PTD paper, Algorithm 1.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "ptd/candidate_pool.h"
#include "ptd/draft_tree.h"
#include "ptd/drafter.h"

namespace ptd {

// What a draft row appends: its next token; its `expansion_k` likeliest successors; or of these the
// smallest set whose probability reaches `expansion_p`.
enum class Expansion { kGreedy, kTopK, kTopP };

// Where the first chains come from: drawn from the prompt; the prompt's last tokens before the
// root, in runs; or a SeedSource (named entities of the text, which the core does not know).
enum class Initialisation { kRandom, kContext, kNer };

// How draft roots lie below the last token: side by side, or as a chain, in which a root is read as
// the token after the root before it (the authors' released program).
enum class Layout { kSibling, kChained };

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
  Expansion expansion = Expansion::kGreedy;
  int expansion_k = 4;       // read by kTopK and kTopP
  float expansion_p = 0.8f;  // read by kTopP
  Initialisation initialisation = Initialisation::kRandom;
  Layout layout = Layout::kSibling;
};

// Chains for a prompt, the best first. Called by begin(); what it throws fails the request.
using SeedSource = std::function<std::vector<std::vector<TokenId>>(Span<const TokenId> prompt)>;

class PTDDrafter final : public Drafter {
 public:
  explicit PTDDrafter(PTDOptions options);

  DrafterNeeds needs() const override;
  void begin(Span<const TokenId> prompt) override;
  void propose(Span<const TokenId> committed, TreeBuilder& tree) override;
  void observe(const StepOutcome& outcome) override;

  // For Initialisation::kNer. Without one, or where it finds too little, chains are drawn from the
  // prompt. Not to be set while a session runs.
  void set_seed_source(SeedSource source) { seed_source_ = std::move(source); }
  bool has_seed_source() const { return static_cast<bool>(seed_source_); }

  const PTDOptions& options() const { return options_; }
  const DraftTree& draft_tree() const { return draft_tree_; }
  const CandidatePool& pool() const { return pool_; }
  // The chains that the draft tree was last planted with.
  const std::vector<std::vector<TokenId>>& initial_chains() const { return chains_; }

 private:
  std::vector<std::vector<TokenId>> context_chains(Span<const TokenId> prompt) const;
  // Plants the given chains, then drawn ones.
  void plant(const std::vector<std::vector<TokenId>>& given);
  bool wants_chain() const;
  void add_chain(const TokenId* first, const TokenId* last);
  bool is_eos(TokenId token) const;
  int gather_predictions(const StepOutcome& outcome);  // returns how many a row
  void recycle(const StepOutcome& outcome);

  PTDOptions options_;
  DraftTree draft_tree_;
  CandidatePool pool_;
  std::vector<TokenId> seed_tokens_;  // the prompt, EOS left out
  std::vector<std::vector<TokenId>> chains_;
  std::uint64_t chain_draws_ = 0;
  SeedSource seed_source_;
  std::vector<CandidateNode> candidates_;
  std::vector<NodeId> step_rows_;     // step row of each retrieved candidate, or of each draft row
  std::vector<TokenId> predictions_;  // [draft rows, expansion_k, or 1 where greedy]
  TokenTree verified_;                // scratch of recycle
  std::vector<NodeId> verified_rows_;
};

}  // namespace ptd
