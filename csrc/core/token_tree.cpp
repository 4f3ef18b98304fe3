#include "ptd/token_tree.h"

#include <algorithm>

namespace ptd {

NodeId TokenTree::create(TokenId token) {
  ++size_;
  if (!free_.empty()) {
    const NodeId id = free_.back();
    free_.pop_back();
    node(id) = Node{};
    node(id).token = token;
    return id;
  }
  nodes_.emplace_back();
  nodes_.back().token = token;
  return static_cast<NodeId>(nodes_.size() - 1);
}

NodeId TokenTree::append_child(NodeId parent, TokenId token) {
  const NodeId id = create(token);
  attach(parent, id);
  return id;
}

void TokenTree::attach(NodeId parent, NodeId child) {
  Node& p = node(parent);
  Node& c = node(child);
  c.parent = parent;
  c.prev_sibling = p.last_child;
  c.next_sibling = kNoNode;
  if (p.last_child == kNoNode) {
    p.first_child = child;
  } else {
    node(p.last_child).next_sibling = child;
  }
  p.last_child = child;
}

void TokenTree::detach(NodeId id) {
  Node& n = node(id);
  if (n.prev_sibling != kNoNode) {
    node(n.prev_sibling).next_sibling = n.next_sibling;
  } else if (n.parent != kNoNode) {
    node(n.parent).first_child = n.next_sibling;
  }
  if (n.next_sibling != kNoNode) {
    node(n.next_sibling).prev_sibling = n.prev_sibling;
  } else if (n.parent != kNoNode) {
    node(n.parent).last_child = n.prev_sibling;
  }
  n.parent = n.prev_sibling = n.next_sibling = kNoNode;
}

int TokenTree::remove_subtree(NodeId id) {
  detach(id);
  const auto first_freed = free_.size();
  // The pre-order walk reads links only of nodes already met, so freeing can wait until its end.
  for (NodeId at = id; at != kNoNode; at = next_preorder(at, id)) free_.push_back(at);
  const int removed = static_cast<int>(free_.size() - first_freed);
  size_ -= removed;
  return removed;
}

int TokenTree::copy_subtree(const TokenTree& source, NodeId source_id, NodeId parent) {
  int made = 0;
  NodeId target_parent = parent;
  NodeId at = source_id;
  while (true) {
    const NodeId copy = append_child(target_parent, source.node(at).token);
    ++made;
    if (!source.is_leaf(at)) {
      at = source.node(at).first_child;
      target_parent = copy;
      continue;
    }
    // Climb until a next sibling is left; the copy's parent climbs along.
    while (at != source_id && source.node(at).next_sibling == kNoNode) {
      at = source.node(at).parent;
      target_parent = node(target_parent).parent;
    }
    if (at == source_id) return made;
    at = source.node(at).next_sibling;
  }
}

NodeId TokenTree::find_child(NodeId parent, TokenId token) const {
  NodeId child = node(parent).first_child;
  while (child != kNoNode && node(child).token != token) child = node(child).next_sibling;
  return child;
}

int TokenTree::child_count(NodeId parent) const {
  int n = 0;
  for (NodeId c = node(parent).first_child; c != kNoNode; c = node(c).next_sibling) ++n;
  return n;
}

int TokenTree::subtree_size(NodeId id) const {
  int n = 0;
  for (NodeId at = id; at != kNoNode; at = next_preorder(at, id)) ++n;
  return n;
}

int TokenTree::height(NodeId id) const {
  int depth = 0;
  int deepest = 0;
  NodeId at = id;
  while (true) {
    if (!is_leaf(at)) {
      at = node(at).first_child;
      deepest = std::max(deepest, ++depth);
      continue;
    }
    while (at != id && node(at).next_sibling == kNoNode) {
      at = node(at).parent;
      --depth;
    }
    if (at == id) return deepest;
    at = node(at).next_sibling;
  }
}

NodeId TokenTree::next_preorder(NodeId id, NodeId top) const {
  if (!is_leaf(id)) return node(id).first_child;
  return skip_subtree(id, top);
}

NodeId TokenTree::skip_subtree(NodeId id, NodeId top) const {
  while (id != top) {
    if (node(id).next_sibling != kNoNode) return node(id).next_sibling;
    id = node(id).parent;
  }
  return kNoNode;
}

void TokenTree::clear() {
  nodes_.clear();
  free_.clear();
  size_ = 0;
}

}  // namespace ptd
