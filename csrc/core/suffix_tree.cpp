#include "ptd/suffix_tree.h"

namespace ptd {

SuffixTree::SuffixTree(int max_depth) : max_depth_(max_depth), nodes_(1) {}

void SuffixTree::clear() {
  text_.clear();
  nodes_.assign(1, Node{});
  free_.clear();
  open_.clear();
  edges_.clear();
  groups_.clear();
}

void SuffixTree::append(TokenId token) {
  text_.push_back(token);
  if (static_cast<int>(open_.size()) == max_depth_) open_.erase(open_.begin());
  open_.push_back(kRoot);
  for (NodeId& at : open_) at = moved(at, token);
}

bool SuffixTree::advance(Place& place, TokenId token) const {
  if (place.above > 0) {
    if (text_[token_index(place.node, place.above)] != token) return false;
    --place.above;
    return true;
  }
  const NodeId next = child(place.node, token);
  if (next == kNoNode) return false;
  place = {next, node(next).length - 1};
  return true;
}

// Where a suffix that ended at `at` ends with one more token, the text's newest.
NodeId SuffixTree::moved(NodeId at, TokenId token) {
  const auto now = static_cast<std::int32_t>(text_.size());
  const NodeId next = node(at).first_child == kNoNode ? kNoNode : child(at, token);
  if (next == kNoNode) {
    if (at != kRoot && node(at).count == 1) {  // nothing else passes through: the node grows
      ++node(at).length;
      node(at).end = now;
      return at;
    }
    const NodeId leaf = create(1);
    add_child(at, leaf);
    return leaf;
  }
  if (at != kRoot && node(next).count + 1 == node(at).count) {
    // With this suffix gone nothing ends or branches at the lower end of `at`.
    if (node(next).length == 1) {
      edges_.erase(edge(at, token));
      groups_.erase(FlatIndex::pair(at, node(next).count));
      node(next).count = node(at).count;
      node(next).length += node(at).length;
      node(next).end = now;
      replace(at, next);
      free_.push_back(at);
      return next;
    }
    edges_.erase(edge(at, token));
    --node(next).length;
    edges_.put(edge(at, first_token(next)), next);
    ++node(at).length;
    node(at).end = now;
    return at;
  }
  if (node(next).length == 1) {
    visit_again(next);
    node(next).end = now;
    return next;
  }
  const NodeId upper = create(node(next).count);
  replace(next, upper);
  --node(next).length;
  add_child(upper, next);
  visit_again(upper);
  return upper;
}

// A node of the newest token.
NodeId SuffixTree::create(int count) {
  NodeId id;
  if (free_.empty()) {
    id = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
    node(id) = Node{};
  }
  node(id).count = count;
  node(id).length = 1;
  node(id).end = static_cast<std::int32_t>(text_.size());
  return id;
}

// The child is new to the list, has none of its siblings' tokens, and none of them is rarer.
void SuffixTree::add_child(NodeId parent, NodeId child) {
  node(child).parent = parent;
  edges_.put(edge(parent, first_token(child)), child);
  const auto group = FlatIndex::pair(parent, node(child).count);
  link_before(child, groups_.find(group));
  groups_.put(group, child);
}

// One more occurrence: the node becomes the first of those that have its new count.
void SuffixTree::visit_again(NodeId id) {
  const NodeId parent = node(id).parent;
  const int count = node(id).count;
  const auto group = FlatIndex::pair(parent, count);
  const auto next_group = FlatIndex::pair(parent, count + 1);
  const NodeId head = groups_.find(group);
  const NodeId next_head = groups_.find(next_group);
  const NodeId behind = node(id).next;
  if (head == id) {
    if (behind != kNoNode && node(behind).count == count) {
      groups_.put(group, behind);
    } else {
      groups_.erase(group);
    }
  }
  if (next_head != kNoNode || head != id) {
    unlink(id);
    link_before(id, next_head != kNoNode ? next_head : head);
  }
  groups_.put(next_group, id);
  node(id).count = count + 1;
}

// `by` takes the place of `old`, whose first token and count it has.
void SuffixTree::replace(NodeId old, NodeId by) {
  const NodeId parent = node(old).parent;
  const NodeId previous = node(old).previous;
  const NodeId next = node(old).next;
  node(by).parent = parent;
  node(by).previous = previous;
  node(by).next = next;
  (previous == kNoNode ? node(parent).first_child : node(previous).next) = by;
  (next == kNoNode ? node(parent).last_child : node(next).previous) = by;
  edges_.put(edge(parent, first_token(old)), by);
  const auto group = FlatIndex::pair(parent, node(old).count);
  if (groups_.find(group) == old) groups_.put(group, by);
  node(old).previous = node(old).next = kNoNode;
}

// Into the children of its parent, in front of a sibling; kNoNode: behind all of them.
void SuffixTree::link_before(NodeId id, NodeId sibling) {
  Node& parent = node(node(id).parent);
  const NodeId previous = sibling == kNoNode ? parent.last_child : node(sibling).previous;
  node(id).previous = previous;
  node(id).next = sibling;
  (previous == kNoNode ? parent.first_child : node(previous).next) = id;
  (sibling == kNoNode ? parent.last_child : node(sibling).previous) = id;
}

void SuffixTree::unlink(NodeId id) {
  Node& parent = node(node(id).parent);
  const NodeId previous = node(id).previous;
  const NodeId next = node(id).next;
  (previous == kNoNode ? parent.first_child : node(previous).next) = next;
  (next == kNoNode ? parent.last_child : node(next).previous) = previous;
}

}  // namespace ptd
