// NgramPool: for a last token, tuples of tokens that followed it. Bounded twice: tuples a key and
// keys, both least recently used out.
// Source: the n-gram pool of Lookahead decoding (Fu et al., 2024), Self-Draft's context cache.
#pragma once

#include <vector>

#include "ptd/flat_index.h"
#include "ptd/step_plan.h"
#include "ptd/types.h"

namespace ptd {

class NgramPool {
 public:
  // length: tokens of a tuple, its key not counted (>= 1). per_key, max_keys: the bounds (>= 1).
  NgramPool(int length, int per_key, int max_keys);

  // Key and tuple, known or new, become the most recently used. `ngram` has `length` tokens.
  void insert(TokenId key, Span<const TokenId> ngram);

  // The key's tuples one after the other, from the least to the most recently used; empty for an
  // unknown key. The key becomes the most recently used. Valid until the next insert() or clear().
  Span<const TokenId> retrieve(TokenId key);

  void clear();

  int length() const { return static_cast<int>(length_); }
  int key_count() const { return static_cast<int>(index_.size()); }
  // Keys from the least to the most recently used, and a key's tuples (tests and inspection).
  std::vector<TokenId> keys_by_age() const;
  Span<const TokenId> find(TokenId key) const;

 private:
  struct Entry {
    TokenId key = kNoToken;
    std::size_t count = 0;  // tuples in use
    int older = -1;         // neighbours in the recency list
    int newer = -1;
  };

  Entry& entry(int e) { return entries_[static_cast<std::size_t>(e)]; }
  TokenId* tuples(int e);
  Span<const TokenId> tuples(int e) const;
  int touch(TokenId key);
  int find_entry(TokenId key) const;
  void link_newest(int e);
  void unlink(int e);

  std::size_t length_;
  std::size_t per_key_;
  std::size_t max_keys_;
  FlatIndex index_;              // key -> entry
  std::vector<Entry> entries_;   // the first key_count() are in use
  std::vector<TokenId> tokens_;  // [entries, per_key, length]
  int oldest_ = -1;
  int newest_ = -1;
};

// Tuples of `length` tokens, one after the other, as candidate chains of their own below the root
// (the walk follows the longest match): the last ones, as many as have room in `rows` rows. Returns
// how many chains that was.
int add_newest_chains(Span<const TokenId> ngrams, int length, int rows, TreeBuilder& tree);
// One such chain; the context limit may cut it.
void add_chain(Span<const TokenId> ngram, TreeBuilder& tree);

}  // namespace ptd
