#include "ptd/ngram_pool.h"

#include <algorithm>
#include <utility>

namespace ptd {
namespace {

std::size_t checked(const char* field, int value, int most) {
  if (value < 1 || value > most) {
    throw InvalidArgument::for_field(field, value, "an integer from 1 to " + std::to_string(most));
  }
  return static_cast<std::size_t>(value);
}

std::uint64_t key_of(TokenId token) { return static_cast<std::uint32_t>(token); }

}  // namespace

NgramPool::NgramPool(int length, int per_key, int max_keys)
    : length_(checked("length", length, kMaxTreeNodes)),
      per_key_(checked("per_key", per_key, kMaxTreeNodes)),
      max_keys_(checked("max_keys", max_keys, 1 << 24)) {}

TokenId* NgramPool::tuples(int e) {
  return tokens_.data() + static_cast<std::size_t>(e) * per_key_ * length_;
}

Span<const TokenId> NgramPool::tuples(int e) const {
  const auto at = static_cast<std::size_t>(e);
  return {tokens_.data() + at * per_key_ * length_, entries_[at].count * length_};
}

int NgramPool::find_entry(TokenId key) const { return index_.find(key_of(key)); }

void NgramPool::link_newest(int e) {
  entry(e).older = newest_;
  entry(e).newer = -1;
  if (newest_ != -1) entry(newest_).newer = e;
  newest_ = e;
  if (oldest_ == -1) oldest_ = e;
}

void NgramPool::unlink(int e) {
  const Entry& out = entry(e);
  (out.older == -1 ? oldest_ : entry(out.older).newer) = out.newer;
  (out.newer == -1 ? newest_ : entry(out.newer).older) = out.older;
}

int NgramPool::touch(TokenId key) {
  int e = find_entry(key);
  if (e != -1) {
    unlink(e);
  } else if (index_.size() < max_keys_) {
    e = key_count();
    if (static_cast<std::size_t>(e) == entries_.size()) {
      entries_.emplace_back();
      tokens_.resize(entries_.size() * per_key_ * length_);
    }
    index_.put(key_of(key), e);
    entry(e) = Entry{key};
  } else {
    // The oldest key's storage serves the new key: nothing is allocated.
    e = oldest_;
    unlink(e);
    index_.erase(key_of(entry(e).key));
    index_.put(key_of(key), e);
    entry(e) = Entry{key};
  }
  link_newest(e);
  return e;
}

void NgramPool::insert(TokenId key, Span<const TokenId> ngram) {
  const int e = touch(key);
  TokenId* first = tuples(e);
  TokenId* last = first + entry(e).count * length_;
  const auto stride = static_cast<std::ptrdiff_t>(length_);
  // Where the tuple that makes room begins: the same one, else the oldest if the key is full.
  TokenId* hole = first;
  while (hole != last && !std::equal(ngram.begin(), ngram.end(), hole)) hole += stride;
  if (hole == last) {
    if (entry(e).count < per_key_) {
      std::copy(ngram.begin(), ngram.end(), last);
      ++entry(e).count;
      return;
    }
    hole = first;
  }
  std::copy(hole + stride, last, hole);
  std::copy(ngram.begin(), ngram.end(), last - stride);
}

Span<const TokenId> NgramPool::retrieve(TokenId key) {
  const int e = find_entry(key);
  if (e == -1) return {};
  unlink(e);
  link_newest(e);
  return std::as_const(*this).tuples(e);
}

void NgramPool::clear() {
  index_.clear();
  oldest_ = newest_ = -1;
}

std::vector<TokenId> NgramPool::keys_by_age() const {
  std::vector<TokenId> keys;
  for (int e = oldest_; e != -1; e = entries_[static_cast<std::size_t>(e)].newer) {
    keys.push_back(entries_[static_cast<std::size_t>(e)].key);
  }
  return keys;
}

Span<const TokenId> NgramPool::find(TokenId key) const {
  const int e = find_entry(key);
  return e == -1 ? Span<const TokenId>{} : tuples(e);
}

void add_chain(Span<const TokenId> ngram, TreeBuilder& tree) {
  NodeId at = 0;
  for (const TokenId token : ngram) {
    at = tree.add_candidate(at, token);
    if (at == kNoNode) return;
  }
}

int add_newest_chains(Span<const TokenId> ngrams, int length, int rows, TreeBuilder& tree) {
  const auto stride = static_cast<std::size_t>(length);
  const std::size_t known = ngrams.size() / stride;
  const std::size_t chains = std::min(known, static_cast<std::size_t>(std::max(0, rows)) / stride);
  for (std::size_t i = known - chains; i < known; ++i) {
    add_chain({ngrams.data() + i * stride, stride}, tree);
  }
  return static_cast<int>(chains);
}

}  // namespace ptd
