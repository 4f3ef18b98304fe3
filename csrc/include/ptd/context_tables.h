// What stood behind a context before, by the context's last tokens.
//
// ContextKey: rolling hashes of the last tokens of a text, and of its continuations in a tree.
// SuccessorTable: context -> the model's likeliest next tokens, as last seen, best first.
// TextTable: context -> the tokens that followed it in the text, with counts.
//
// Both tables are set-associative and of fixed size: full sets drop what was used least recently,
// so memory and time are bounded whatever is written. Two contexts meet in one entry only if 64
// bits of hash agree; the cost would be a wasted row.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ptd/types.h"

namespace ptd {

// Longest context that anything is remembered of.
inline constexpr int kMaxContextOrder = 8;

// Hash state after a token: prefix hashes of this token and the ones before it, newest first.
class ContextKey {
 public:
  ContextKey() = default;

  ContextKey next(TokenId token) const {
    ContextKey after;
    for (int k = kMaxContextOrder; k > 0; --k) after.prefix_[k] = prefix_[k - 1];
    after.prefix_[0] = prefix_[0] * kBase + static_cast<std::uint64_t>(token) + 1;
    after.length_ = length_ < kMaxContextOrder ? length_ + 1 : length_;
    return after;
  }

  // Hash of the last `order` tokens (1 to length()); never 0.
  std::uint64_t of(int order) const {
    std::uint64_t h = prefix_[0] - prefix_[order] * kPowers[static_cast<std::size_t>(order)];
    h += static_cast<std::uint64_t>(order) * 0x9e3779b97f4a7c15ULL;
    h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93ULL;
    h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93ULL;
    return (h ^ (h >> 32)) | 1;
  }

  int length() const { return length_; }

 private:
  static constexpr std::uint64_t kBase = 0x2545f4914f6cdd1dULL;
  static constexpr std::array<std::uint64_t, kMaxContextOrder + 1> kPowers = [] {
    std::array<std::uint64_t, kMaxContextOrder + 1> powers{};
    powers[0] = 1;
    for (std::size_t i = 1; i < powers.size(); ++i) powers[i] = powers[i - 1] * kBase;
    return powers;
  }();

  std::uint64_t prefix_[kMaxContextOrder + 1] = {};
  int length_ = 0;
};

namespace detail {

// Entries in sets of four. Keys and stamps of a set share a cache line apart from what is
// remembered: most contexts that are looked up are not there, and a step's weights have pushed all
// of it out of the nearer caches. `stamp` orders the entries' use; those below `first_live` are
// empty.
template <class Entry>
class SetAssociative {
 public:
  explicit SetAssociative(int entries) {
    std::size_t size = kWays;
    while (size < static_cast<std::size_t>(entries)) size *= 2;
    sets_.resize(size / kWays);
    entries_.resize(size);
  }

  void clear() { first_live_ = ++clock_; }

  // Begin to load what find() of this key will read first.
  void prefetch(std::uint64_t key) const { __builtin_prefetch(&sets_[set_of(key)]); }

  const Entry* find(std::uint64_t key) const {
    const std::size_t at = set_of(key);
    const Set& set = sets_[at];
    for (std::size_t way = 0; way < kWays; ++way) {
      if (set.keys[way] == key && set.stamps[way] >= first_live_) {
        return &entries_[at * kWays + way];
      }
    }
    return nullptr;
  }

  // The key's entry; a new one (`fresh`) takes the place of the set's least recently written.
  Entry& touch(std::uint64_t key, bool& fresh) {
    const std::size_t at = set_of(key);
    Set& set = sets_[at];
    std::size_t oldest = 0;
    for (std::size_t way = 0; way < kWays; ++way) {
      if (set.keys[way] == key && set.stamps[way] >= first_live_) {
        set.stamps[way] = ++clock_;
        fresh = false;
        return entries_[at * kWays + way];
      }
      if (set.stamps[way] < set.stamps[oldest]) oldest = way;
    }
    fresh = true;
    set.keys[oldest] = key;
    set.stamps[oldest] = ++clock_;
    return entries_[at * kWays + oldest];
  }

  std::size_t bytes() const { return sets_.size() * sizeof(Set) + entries_.size() * sizeof(Entry); }

 private:
  static constexpr std::size_t kWays = 4;
  struct alignas(64) Set {
    std::array<std::uint64_t, kWays> keys{};
    std::array<std::uint64_t, kWays> stamps{};
  };

  std::size_t set_of(std::uint64_t key) const { return (key >> 20) & (sets_.size() - 1); }

  std::vector<Set> sets_;
  std::vector<Entry> entries_;
  std::uint64_t clock_ = 0;
  std::uint64_t first_live_ = 1;
};

}  // namespace detail

class SuccessorTable {
 public:
  static constexpr int kRanks = 8;
  struct Entry {
    std::array<TokenId, kRanks> tokens;  // best first; kNoToken behind the last
    bool of_text = false;                // seen at a row whose context is the output itself
  };

  explicit SuccessorTable(int entries) : table_(entries) {}

  void clear() { table_.clear(); }
  const Entry* find(std::uint64_t key) const { return table_.find(key); }
  void prefetch(std::uint64_t key) const { table_.prefetch(key); }
  void put(std::uint64_t key, Span<const TokenId> tokens, bool of_text) {
    bool fresh = false;
    Entry& entry = table_.touch(key, fresh);
    entry.of_text = of_text;
    for (std::size_t i = 0; i < kRanks; ++i) {
      entry.tokens[i] = i < tokens.size() ? tokens[i] : kNoToken;
    }
  }
  std::size_t bytes() const { return table_.bytes(); }

 private:
  detail::SetAssociative<Entry> table_;
};

class TextTable {
 public:
  static constexpr int kSlots = 4;
  struct Entry {
    std::array<TokenId, kSlots> tokens;        // most recent first; kNoToken behind the last
    std::array<std::uint16_t, kSlots> counts;  // halved together when one is full
  };

  explicit TextTable(int entries) : table_(entries) {}

  void clear() { table_.clear(); }
  const Entry* find(std::uint64_t key) const { return table_.find(key); }
  void prefetch(std::uint64_t key) const { table_.prefetch(key); }
  // `token` followed the context: it moves to the front.
  void add(std::uint64_t key, TokenId token);
  std::size_t bytes() const { return table_.bytes(); }

 private:
  detail::SetAssociative<Entry> table_;
};

}  // namespace ptd
