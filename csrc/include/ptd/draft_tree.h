// DraftTree: the tree that the target model grows for itself, one level a step.
// Source: the PTD paper, section 3 (expansion, width limit w, depth limit d, step-and-prune).
//
// Order of one step: expand, (merge into the candidate pool), refill, step_and_prune.
#pragma once

#include <utility>
#include <vector>

#include "ptd/token_tree.h"

namespace ptd {

class DraftTree {
 public:
  // width: most children of a node and most subtree roots (1..64).
  // depth: a subtree of this height loses its root (1..64).
  // max_nodes: expansion stops here and older nodes stay (1..255).
  // eos_ids: tokens after which nothing is worth drafting.
  DraftTree(int width, int depth, int max_nodes, std::vector<TokenId> eos_ids = {});

  // Drops everything and plants the chains. A chain whose first token is already a root is left
  // out, and so are chains beyond `width` roots; a chain ends before an EOS; max_nodes holds.
  void init(const std::vector<std::vector<TokenId>>& chains);

  // Nodes in depth-first pre-order, roots and children in the order they were added. Valid until
  // the next change.
  const std::vector<NodeId>& rows() const { return rows_; }
  // Row of each row's parent, kNoNode for roots.
  const std::vector<int>& parent_rows() const { return parent_rows_; }

  // Appends to every row its predicted next token, unless it has that child already, has `width`
  // children, or the tree is full. kNoToken: the row was not in the step. `predictions` is
  // [rows, each]: with more than one, all rows append their first prediction, then all their
  // second, and so on, so that a full tree leaves out the unlikelier ones; kNoToken fills up.
  void expand(Span<const TokenId> predictions, int each = 1);

  // With fewer than `width` roots: the newest root's prediction of this step becomes a root itself
  // and leaves the newest root's children. Nothing happens if that token is a root already.
  void refill();

  // Removes EOS nodes with their subtrees, then replaces the root of every subtree that is `depth`
  // high by its earliest-added child whose token is not a root yet, appended last. A full tree
  // with no such subtree would never change again: there the tallest one (the first on a tie)
  // steps.
  void step_and_prune();

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int width() const { return width_; }
  int depth() const { return depth_; }
  const TokenTree& tree() const { return tree_; }
  NodeId top() const { return top_; }  // parent of the roots

 private:
  bool is_eos(TokenId token) const;
  NodeId tallest_root() const;
  void remove(NodeId id) { size_ -= tree_.remove_subtree(id); }
  void refresh_rows();

  int width_;
  int depth_;
  int max_nodes_;
  std::vector<TokenId> eos_ids_;
  TokenTree tree_;
  NodeId top_;
  int size_ = 0;
  std::vector<NodeId> rows_;
  std::vector<int> parent_rows_;
  std::vector<int> row_of_node_;
  std::vector<NodeId> tall_roots_;             // scratch of step_and_prune
  TokenId newest_root_prediction_ = kNoToken;  // of the last expand
};

}  // namespace ptd
