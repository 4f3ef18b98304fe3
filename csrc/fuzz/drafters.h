// Every drafter of the library, with options drawn from an input; null where they were refused.
#pragma once

#include <memory>
#include <vector>

#include "input.h"
#include "ptd/hybrid_drafter.h"
#include "ptd/lookahead_drafter.h"
#include "ptd/prompt_lookup_drafter.h"
#include "ptd/ptd_drafter.h"
#include "ptd/self_draft_drafter.h"
#include "ptd/suffix_drafter.h"
#include "ptd/token_recycling_drafter.h"

namespace ptd_fuzz {

inline std::shared_ptr<ptd::Drafter> draw_ptd(Input& input) {
  ptd::PTDOptions options;
  options.width = input.wild(1, 6);
  options.depth = input.wild(1, 8);
  options.max_draft_nodes = input.wild(1, 120);
  options.max_candidate_nodes = input.wild(0, 120);
  options.pool_nodes_per_key = input.wild(1, 30);
  options.pool_max_keys = input.between(1, 12);
  options.recycle_verified = input.one_in(2);
  options.share_pool = input.one_in(2);
  options.seed = input.byte();
  if (input.one_in(3)) options.eos_ids = {input.between(0, 9)};
  options.expansion = static_cast<ptd::Expansion>(input.between(0, 2));
  options.expansion_k = input.between(0, 5);
  options.initialisation = static_cast<ptd::Initialisation>(input.between(0, 2));
  options.layout = static_cast<ptd::Layout>(input.between(0, 1));
  return std::make_shared<ptd::PTDDrafter>(options);
}

inline std::shared_ptr<ptd::Drafter> draw_hybrid(Input& input) {
  ptd::HybridOptions options;
  options.max_candidate_nodes = input.wild(1, 100);
  options.auto_budget = input.one_in(2);
  options.max_draft_nodes = input.one_in(2) ? 0 : input.wild(0, 60);
  options.width = input.wild(1, 4);
  options.depth = input.wild(1, 6);
  options.successors = input.wild(1, 8);
  options.prompt_outputs = input.one_in(2);
  options.keep_statistics = input.one_in(2);
  options.keep_tables = input.one_in(2);
  options.table_entries = input.between(-1, 200);
  options.sources = input.one_in(2) ? ~0u : input.word();
  if (input.one_in(3)) options.eos_ids = {input.between(0, 9)};
  return std::make_shared<ptd::HybridDrafter>(options);
}

inline std::shared_ptr<ptd::Drafter> draw_lookahead(Input& input) {
  ptd::LookaheadOptions options;
  options.level = input.wild(2, 9);
  options.window = input.wild(1, 20);
  options.guesses = input.wild(1, 20);
  options.prompt_ngrams = input.one_in(2);
  options.faithful = input.one_in(2);
  options.pool_max_keys = input.between(0, 9);
  return std::make_shared<ptd::LookaheadDrafter>(options);
}

inline std::shared_ptr<ptd::Drafter> draw_self_draft(Input& input) {
  ptd::SelfDraftOptions options;
  options.branches = input.wild(1, 8);
  options.length = input.wild(2, 9);
  options.ngram = input.wild(1, 7);
  options.ngrams_per_key = input.wild(1, 12);
  options.faithful = input.one_in(2);
  options.pool_max_keys = input.between(0, 9);
  options.corpus_candidates = input.wild(0, 5);
  for (int n = input.between(0, 3); n > 0; --n) {
    std::vector<ptd::TokenId> ngrams(static_cast<std::size_t>(input.between(0, 14)));
    for (auto& token : ngrams) token = input.between(-1, 20);
    options.corpus[input.between(-1, 20)] = ngrams;
  }
  return std::make_shared<ptd::SelfDraftDrafter>(options);
}

inline std::shared_ptr<ptd::Drafter> draw_suffix(Input& input) {
  ptd::SuffixOptions options;
  options.max_candidate_nodes = input.wild(1, 60);
  options.max_depth = input.wild(1, 70);
  options.factor = input.between(0, 8) / 2.0;
  options.min_probability = input.between(0, 10) / 10.0;
  options.as_tree = input.one_in(2);
  options.index_tokens = input.one_in(2) ? 0 : input.between(0, 300);
  return std::make_shared<ptd::SuffixDrafter>(options);
}

inline std::shared_ptr<ptd::Drafter> draw_drafter(Input& input) {
  try {
    switch (input.between(0, 7)) {
      case 0:
        return std::make_shared<ptd::AutoregressiveDrafter>();
      case 1:
        return std::make_shared<ptd::PromptLookupDrafter>(
            ptd::PromptLookupOptions{input.wild(1, 6), input.wild(1, 20)});
      case 2:
        return std::make_shared<ptd::TokenRecyclingDrafter>(
            ptd::TokenRecyclingOptions{input.wild(1, 90), input.wild(1, 9), input.one_in(2)});
      case 3:
        return draw_lookahead(input);
      case 4:
        return draw_self_draft(input);
      case 5:
        return draw_suffix(input);
      case 6:
        return draw_hybrid(input);
      default:
        return draw_ptd(input);
    }
  } catch (const ptd::InvalidArgument&) {
    return nullptr;
  }
}

}  // namespace ptd_fuzz
