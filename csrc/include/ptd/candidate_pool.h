// CandidatePool: for a last token, the trie of continuations that the draft tree has shown so far.
// Source: the PTD paper, section 3 (candidate pool, merge, retrieval).
//
// Bounded: nodes a key (its oldest first-level child goes first) and keys (least recently used).
#pragma once

#include <vector>

#include "ptd/draft_tree.h"
#include "ptd/token_tree.h"

namespace ptd {

// One node of a retrieved candidate tree; parent is an index into the list, kNoNode below the key.
struct CandidateNode {
  TokenId token;
  int parent;
};

class CandidatePool {
 public:
  CandidatePool(int max_nodes_per_key = 60, int max_keys = 4096);

  // For every node v of the draft tree that has children, in row order: merges subtree(v) into the
  // trie of token(v). A known child is merged recursively (its count rises), an unknown one is
  // attached whole, last.
  void merge(const DraftTree& draft) { merge(draft.tree(), draft.rows()); }
  // The same for any tree: `rows` are its nodes in depth-first pre-order.
  void merge(const TokenTree& source, Span<const NodeId> rows);

  // At most `budget` nodes below `token`, parents before children, into `out` (cleared first). The
  // whole trie in depth-first order if it fits, else best-first by the product of count shares.
  // The key becomes the most recently used.
  void retrieve(TokenId token, int budget, std::vector<CandidateNode>& out);

  // Drops every key.
  void clear();

  int key_count() const { return key_count_; }
  int total_nodes() const { return total_nodes_; }
  // Keys from least to most recently used, and a key's trie top (for tests and inspection).
  std::vector<TokenId> keys_by_age() const;
  NodeId find_top(TokenId token) const;
  const TokenTree& tree() const { return tree_; }

 private:
  struct Entry {
    TokenId key = kNoToken;
    NodeId top = kNoNode;
    int size = 0;
    int older = -1;  // neighbours in the recency list
    int newer = -1;
  };
  // A node that may be taken next; the heap's top has the best score, the earliest on a tie.
  struct Frontier {
    double score;
    int order;
    NodeId node;
    int parent;
    bool operator<(const Frontier& other) const {
      return score != other.score ? score < other.score : order > other.order;
    }
  };

  int find_slot(TokenId token) const;
  int find_entry(TokenId token) const;
  int touch(TokenId token);
  void link_newest(int entry);
  void unlink(int entry);
  void evict_oldest_key();
  int merge_children(NodeId target, const TokenTree& source, NodeId source_parent);
  void trim(Entry& entry);
  void retrieve_all(const Entry& entry, std::vector<CandidateNode>& out);
  void retrieve_best(const Entry& entry, int budget, std::vector<CandidateNode>& out);
  void push_children(NodeId parent, double score, int parent_index);

  int max_nodes_per_key_;
  int max_keys_;
  TokenTree tree_;
  std::vector<Entry> entries_;
  std::vector<int> free_entries_;
  std::vector<int> slots_;  // open addressing: entry index or -1
  int oldest_ = -1;
  int newest_ = -1;
  int key_count_ = 0;
  int total_nodes_ = 0;
  std::vector<NodeId> breadth_first_;  // scratch of trim
  std::vector<int> open_;              // scratch of retrieve_all: output indices of open ancestors
  std::vector<Frontier> frontier_;     // scratch of retrieve_best: a heap
  int pushed_ = 0;                     // nodes pushed on that heap so far
};

}  // namespace ptd
