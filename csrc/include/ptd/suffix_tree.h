// SuffixTree: how often every token sequence of up to max_depth tokens occurs in a text, and what
// follows it. The text grows a token at a time and may consist of several sequences, across whose
// borders nothing is counted.
//
// A trie of all suffixes, cut at max_depth, in which a node without branches is folded into the
// node below it: a node stands for the last `length` tokens in front of `end` in the text. So there
// are at most two nodes a token. Every suffix of the sequence under way ends at the lower end of
// some node, never inside one; `open` holds these, and append() moves each of them by a token. A
// node's children are ordered by count, and among equals by how recently they occurred.
#pragma once

#include <vector>

#include "ptd/flat_index.h"
#include "ptd/types.h"

namespace ptd {

class SuffixTree {
 public:
  // A place in the trie: `above` tokens of `node`'s lie behind it, 0 at the node's lower end. The
  // place in front of every sequence is the root's.
  struct Place {
    NodeId node = 0;
    std::int32_t above = 0;
  };
  static constexpr NodeId kRoot = 0;

  explicit SuffixTree(int max_depth);

  void clear();
  // The text goes on with a new sequence.
  void begin_sequence() { open_.clear(); }
  void append(TokenId token);

  int max_depth() const { return max_depth_; }
  // Tokens of the text; nodes in use, and slots ever allocated.
  std::size_t text_size() const { return text_.size(); }
  std::size_t node_count() const { return nodes_.size() - free_.size(); }
  std::size_t capacity() const { return nodes_.capacity(); }

  // The longest suffix of the sequence under way that is counted: its length, at most max_depth.
  int open_suffixes() const { return static_cast<int>(open_.size()); }
  // Where the last `length` tokens of the sequence under way end, 1 <= length <= open_suffixes().
  Place suffix(int length) const {
    return {open_[open_.size() - static_cast<std::size_t>(length)], 0};
  }

  int count(Place place) const { return node(place.node).count; }
  // The place a token further down; false if the text never went on like that.
  bool advance(Place& place, TokenId token) const;
  // Calls visit(place, token) for each continuation by a token, most frequent first, until it
  // returns false.
  template <class Visit>
  void for_each_next(Place place, const Visit& visit) const {
    if (place.above > 0) {
      visit(Place{place.node, place.above - 1}, text_[token_index(place.node, place.above)]);
      return;
    }
    for (NodeId c = node(place.node).first_child; c != kNoNode; c = node(c).next) {
      const int length = node(c).length;
      if (!visit(Place{c, length - 1}, text_[token_index(c, length)])) return;
    }
  }

 private:
  struct Node {
    NodeId parent = kNoNode;
    NodeId first_child = kNoNode;
    NodeId last_child = kNoNode;
    NodeId previous = kNoNode;  // siblings
    NodeId next = kNoNode;
    std::int32_t count = 0;
    std::int32_t length = 0;
    std::int32_t end = 0;
  };

  const Node& node(NodeId id) const { return nodes_[static_cast<std::size_t>(id)]; }
  Node& node(NodeId id) { return nodes_[static_cast<std::size_t>(id)]; }
  // Where the token with `above` - 1 more behind it stands in the text.
  std::size_t token_index(NodeId id, int above) const {
    return static_cast<std::size_t>(node(id).end - above);
  }
  TokenId first_token(NodeId id) const { return text_[token_index(id, node(id).length)]; }
  NodeId child(NodeId parent, TokenId token) const { return edges_.find(edge(parent, token)); }

  static std::uint64_t edge(NodeId parent, TokenId token) { return FlatIndex::pair(parent, token); }

  NodeId moved(NodeId at, TokenId token);
  NodeId create(int count);
  void add_child(NodeId parent, NodeId child);
  void visit_again(NodeId id);
  void replace(NodeId old, NodeId by);
  void link_before(NodeId id, NodeId sibling);
  void unlink(NodeId id);

  int max_depth_;
  std::vector<TokenId> text_;
  std::vector<Node> nodes_;
  std::vector<NodeId> free_;
  std::vector<NodeId> open_;  // where the suffixes under way end, the longest first
  FlatIndex edges_;           // (parent, first token) -> child
  FlatIndex groups_;          // (parent, count) -> the first child with that count
};

}  // namespace ptd
