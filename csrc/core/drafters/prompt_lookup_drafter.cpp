#include "ptd/prompt_lookup_drafter.h"

#include <algorithm>
#include <string>

namespace ptd {
namespace {

constexpr int kMost = 64;

std::uint64_t extend_hash(std::uint64_t hash, TokenId token) {
  hash = (hash ^ static_cast<std::uint32_t>(token)) * 0xD6E8FEB86659FD93ULL;
  return hash ^ (hash >> 32);
}

}  // namespace

PromptLookupDrafter::PromptLookupDrafter(PromptLookupOptions options) : options_(options) {
  const auto check = [](const char* field, int value) {
    if (value < 1 || value > kMost) {
      throw InvalidArgument::for_field(field, value, "an integer from 1 to 64");
    }
  };
  check("max_ngram", options_.max_ngram);
  check("max_candidate_nodes", options_.max_candidate_nodes);
  hashes_.resize(static_cast<std::size_t>(options_.max_ngram));
}

void PromptLookupDrafter::begin(Span<const TokenId> prompt) {
  behind_first_.clear();
  indexed_ = 0;
  index_up_to_last(prompt);
}

// Hashes the n-grams that end at position `last`, the shortest first; returns how many there are.
int PromptLookupDrafter::hash_ngrams(Span<const TokenId> text, int last) {
  const int longest = std::min(options_.max_ngram, last + 1);
  std::uint64_t hash = 0x243F6A8885A308D3ULL;
  for (int n = 1; n <= longest; ++n) {
    hash = extend_hash(hash, text[static_cast<std::size_t>(last + 1 - n)]);
    hashes_[static_cast<std::size_t>(n - 1)] = hash;
  }
  return longest;
}

// Nothing follows an n-gram that ends with the text, so those wait.
void PromptLookupDrafter::index_up_to_last(Span<const TokenId> text) {
  for (; indexed_ + 1 < static_cast<int>(text.size()); ++indexed_) {
    const int longest = hash_ngrams(text, indexed_);
    for (int n = 1; n <= longest; ++n) {
      behind_first_.put_if_absent(hashes_[static_cast<std::size_t>(n - 1)], indexed_ + 1);
    }
  }
}

// The position behind the first occurrence of the longest n-gram that occurs again, or -1.
int PromptLookupDrafter::find(Span<const TokenId> text) {
  const int longest = hash_ngrams(text, static_cast<int>(text.size()) - 1);
  for (int n = longest; n >= 1; --n) {
    const int behind = behind_first_.find(hashes_[static_cast<std::size_t>(n - 1)]);
    // Equal hashes of unequal n-grams are as good as impossible, and no match.
    if (behind >= n &&
        std::equal(text.begin() + behind - n, text.begin() + behind, text.end() - n)) {
      return behind;
    }
  }
  return -1;
}

void PromptLookupDrafter::propose(Span<const TokenId> committed, TreeBuilder& tree) {
  index_up_to_last(committed);
  const int from = find(committed);
  if (from < 0) return;
  const auto end =
      std::min(committed.size(), static_cast<std::size_t>(from + options_.max_candidate_nodes));
  NodeId row = 0;
  for (auto at = static_cast<std::size_t>(from); at < end && row != kNoNode; ++at) {
    row = tree.add_candidate(row, committed[at]);
  }
}

}  // namespace ptd
