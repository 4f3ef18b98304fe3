// TokenTree: an arena of token nodes with ordered children. It holds any number of trees; the draft
// tree's roots and a pool key's tries hang below "top" nodes that carry no token of a tree.
// Freed nodes are recycled, so a steady state allocates nothing.
#pragma once

#include <vector>

#include "ptd/types.h"

namespace ptd {

class TokenTree {
 public:
  struct Node {
    TokenId token = kNoToken;
    NodeId parent = kNoNode;
    NodeId first_child = kNoNode;
    NodeId last_child = kNoNode;
    NodeId prev_sibling = kNoNode;
    NodeId next_sibling = kNoNode;
    std::int32_t count = 1;  // how often the node was merged (candidate pool)
  };

  const Node& node(NodeId id) const { return nodes_[static_cast<std::size_t>(id)]; }
  Node& node(NodeId id) { return nodes_[static_cast<std::size_t>(id)]; }
  bool is_leaf(NodeId id) const { return node(id).first_child == kNoNode; }

  // Nodes in use, tops included; and slots ever allocated (the memory bound).
  int size() const { return size_; }
  int capacity() const { return static_cast<int>(nodes_.size()); }

  NodeId create(TokenId token);
  NodeId append_child(NodeId parent, TokenId token);
  // Moves a detached node (with its subtree) below parent, as the last child.
  void attach(NodeId parent, NodeId child);
  // Unlinks a node (with its subtree) from its parent; the node stays in the arena.
  void detach(NodeId id);
  // Detaches the subtree and recycles its nodes; returns how many there were.
  int remove_subtree(NodeId id);
  // Copies the subtree at `source_id` of `source` below parent, as the last child, counts reset to
  // one; returns how many nodes were made. `source` must be another tree.
  int copy_subtree(const TokenTree& source, NodeId source_id, NodeId parent);

  // First (earliest-added) child with that token, or kNoNode. Linear in the children.
  NodeId find_child(NodeId parent, TokenId token) const;
  int child_count(NodeId parent) const;
  int subtree_size(NodeId id) const;
  // Hops from the node to its deepest descendant; 0 for a leaf.
  int height(NodeId id) const;
  // The node after `id` in depth-first pre-order within the subtree of `top`, or kNoNode at its
  // end.
  NodeId next_preorder(NodeId id, NodeId top) const;
  // The node after the whole subtree of `id`, within the subtree of `top`.
  NodeId skip_subtree(NodeId id, NodeId top) const;

  void clear();

 private:
  std::vector<Node> nodes_;
  std::vector<NodeId> free_;
  int size_ = 0;
};

}  // namespace ptd
