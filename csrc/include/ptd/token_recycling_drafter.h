// TokenRecyclingDrafter: for each token the best successors that the model gave it when it was last
// a row of a forward pass; a static tree over their ranks is read from the last token on.
// Source: Token Recycling (Luo et al., 2024, arXiv 2408.08696).
//
// Every row of every forward refreshes the row of its token in the matrix: the prompt's, then each
// step's in the order of rows, the root and the accepted rows once more at the end, so they win.
//
// The static tree takes the `max_candidate_nodes` most probable paths, where a path's probability
// is the product of kRankShare over its ranks. With 80 nodes and 8 successors its levels are of
// about the size of the published tree's (8, 21, 25, 15, 8, 3).
#pragma once

#include <vector>

#include "ptd/drafter.h"
#include "ptd/flat_index.h"

namespace ptd {

struct TokenRecyclingOptions {
  int max_candidate_nodes = 80;  // nodes of the static tree
  int successors = 8;            // kept for a token
  // Keep the matrix from request to request. It has a row for each token that was ever a row of a
  // forward pass: at most the vocabulary, 4 * successors + 32 bytes each.
  bool warm = false;
};

// A node of the static tree: below node `parent` (kNoNode: the last token) its successor `rank`.
struct RankNode {
  int parent;
  int rank;
};

// The most probable paths over ranks 0 to successors - 1, parents before children.
std::vector<RankNode> rank_tree(int nodes, int successors);

class TokenRecyclingDrafter final : public Drafter {
 public:
  explicit TokenRecyclingDrafter(TokenRecyclingOptions options);

  DrafterNeeds needs() const override;
  void begin(Span<const TokenId> prompt) override;
  void propose(Span<const TokenId> committed, TreeBuilder& tree) override;
  void observe(const StepOutcome& outcome) override;
  void observe_prompt(int first, Span<const TokenId> outputs, int stride) override;

  const std::vector<RankNode>& static_tree() const { return static_tree_; }
  // Tokens with successors, and those of one token, best first; empty if it was never a row.
  int known_tokens() const { return static_cast<int>(rows_.size()); }
  Span<const TokenId> successors(TokenId token) const;

 private:
  void refresh(TokenId token, const TokenId* output);

  TokenRecyclingOptions options_;
  std::vector<RankNode> static_tree_;
  std::vector<TokenId> prompt_;  // of the request under way
  FlatIndex rows_;               // token -> its row of the matrix
  std::vector<TokenId> matrix_;  // [rows, successors]; kNoToken where there are fewer
  std::vector<NodeId> placed_;   // scratch: step row of each static node
};

}  // namespace ptd
