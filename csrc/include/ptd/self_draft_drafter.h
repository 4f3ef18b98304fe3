// SelfDraftDrafter: independent branches are drafted beside the text; n-grams of branches, context
// and predictions go into a cache, and those that follow the last token are verified as chains.
// Source: Self-Draft (Gao et al., 2024), greedy form.
//
// Draft rows: perturbations, chains of one or two tokens below the root; column 0 of level 1 hangs
// below the root, column i below the end of perturbation i - 1; each later level hangs below the
// one before it.
#pragma once

#include <unordered_map>
#include <vector>

#include "ptd/drafter.h"
#include "ptd/level_window.h"
#include "ptd/ngram_pool.h"
#include "ptd/prompt_draws.h"

namespace ptd {

// Last token -> n-grams one after the other, the likeliest first.
using NgramCorpus = std::unordered_map<TokenId, std::vector<TokenId>>;

struct SelfDraftOptions {
  int branches = 6;           // drafted beside each other: one unperturbed, the others perturbed
  int length = 6;             // of a branch that begins with two tokens: length - 1 levels (3..64)
  int ngram = 4;              // tokens of an n-gram, its key not counted (2..length - 1)
  int ngrams_per_key = 10;    // chains a step too
  NgramCorpus corpus;         // further chains, read only
  int corpus_candidates = 3;  // at most as many of them a step
  bool faithful = false;      // at most `ngram` tokens a step, as the published program
  int pool_max_keys = 4096;
  std::uint64_t seed = 0;  // of the perturbations, drawn from the prompt
};

class SelfDraftDrafter final : public Drafter {
 public:
  explicit SelfDraftDrafter(SelfDraftOptions options);

  DrafterNeeds needs() const override;
  void begin(Span<const TokenId> prompt) override;
  void propose(Span<const TokenId> committed, TreeBuilder& tree) override;
  void observe(const StepOutcome& outcome) override;

  const NgramPool& pool() const { return pool_; }
  const LevelWindow& window() const { return window_; }
  const std::vector<std::vector<TokenId>>& perturbations() const { return perturbations_; }

 private:
  void read(Span<const TokenId> tokens);
  void propose_chains(TokenId root, TreeBuilder& tree);
  void propose_branches(TreeBuilder& tree);
  void learn_branches(const StepOutcome& outcome);
  void learn_column_0(const StepOutcome& outcome);
  void shift_perturbations();
  int branch_rows() const;

  SelfDraftOptions options_;
  PromptDraws draws_;
  LevelWindow window_;
  NgramPool pool_;
  std::vector<std::vector<TokenId>> perturbations_;
  std::vector<TokenId> recent_;       // the last tokens of prompt and output, at most ngram + 1
  std::vector<NodeId> rows_;          // of the last level, kNoNode where a column got none
  std::vector<NodeId> column_0_;      // rows of column 0, as far down as they got any
  std::vector<NodeId> draft_rows_;    // the other draft rows, in order
  std::vector<TokenId> first_level_;  // scratch
  std::vector<TokenId> ngram_;        // scratch
};

}  // namespace ptd
