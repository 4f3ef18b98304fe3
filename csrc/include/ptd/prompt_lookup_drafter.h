// PromptLookupDrafter: the last tokens stood in the text before; what followed there is proposed
// as a chain. Source: Prompt Lookup Decoding (Saxena, 2023).
//
// The longest run of last tokens that has an earlier occurrence counts, from max_ngram tokens down
// to one, and of its occurrences the first. An occurrence may overlap the last tokens; the copy
// ends where the text does. A table of first occurrences makes a step's cost independent of the
// text's length; it has at most max_ngram entries a token of the text.
#pragma once

#include <vector>

#include "ptd/drafter.h"
#include "ptd/flat_index.h"

namespace ptd {

struct PromptLookupOptions {
  int max_ngram = 3;             // longest run of last tokens to look for
  int max_candidate_nodes = 10;  // tokens copied
};

class PromptLookupDrafter final : public Drafter {
 public:
  explicit PromptLookupDrafter(PromptLookupOptions options);

  DrafterNeeds needs() const override { return {options_.max_candidate_nodes}; }
  void begin(Span<const TokenId> prompt) override;
  void propose(Span<const TokenId> committed, TreeBuilder& tree) override;
  void observe(const StepOutcome&) override {}

  // n-grams in the table.
  std::size_t indexed_ngrams() const { return behind_first_.size(); }

 private:
  void index_up_to_last(Span<const TokenId> text);
  int hash_ngrams(Span<const TokenId> text, int last);
  int find(Span<const TokenId> text);

  PromptLookupOptions options_;
  FlatIndex behind_first_;             // hash of an n-gram -> position behind its first occurrence
  int indexed_ = 0;                    // n-grams that end before this position are in the table
  std::vector<std::uint64_t> hashes_;  // scratch: of the n-grams that end at one position
};

}  // namespace ptd
