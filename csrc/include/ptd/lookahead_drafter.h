// LookaheadDrafter: a window of Jacobi levels is drafted beside the text, its columns give n-grams,
// and those that follow the last token are verified as chains.
// Source: Lookahead decoding, LADE (Fu et al., 2024), greedy form.
//
// Draft rows: level 0 is a chain below the root; column 0 of level 1 hangs below the root, column i
// below the chain's token i - 1; each later level hangs below the one before it.
#pragma once

#include <vector>

#include "ptd/drafter.h"
#include "ptd/level_window.h"
#include "ptd/ngram_pool.h"
#include "ptd/prompt_draws.h"

namespace ptd {

struct LookaheadOptions {
  int level = 5;               // N: tokens of an n-gram, key included; N - 1 levels (3..16)
  int window = 15;             // W: columns of the window
  int guesses = 15;            // G: n-grams a key, and chains a step
  bool prompt_ngrams = false;  // n-grams of prompt and output go into the pool too
  bool faithful = false;       // at most N - 1 tokens a step, as the published program
  int pool_max_keys = 4096;
  std::uint64_t seed = 0;  // of the window's first tokens, drawn from the prompt
};

class LookaheadDrafter final : public Drafter {
 public:
  explicit LookaheadDrafter(LookaheadOptions options);

  DrafterNeeds needs() const override;
  void begin(Span<const TokenId> prompt) override;
  void propose(Span<const TokenId> committed, TreeBuilder& tree) override;
  void observe(const StepOutcome& outcome) override;

  const NgramPool& pool() const { return pool_; }
  const LevelWindow& window() const { return window_; }

 private:
  void read(Span<const TokenId> tokens);
  void propose_window(TreeBuilder& tree);
  void collect_ngrams(const StepOutcome& outcome);

  LookaheadOptions options_;
  PromptDraws draws_;
  LevelWindow window_;
  NgramPool pool_;
  std::vector<TokenId> recent_;       // the last tokens of prompt and output, at most N
  std::vector<NodeId> rows_;          // of the last level, kNoNode where a column got none
  std::vector<NodeId> chain_rows_;    // the root and the rows of level 0
  std::vector<TokenId> first_level_;  // scratch
  std::vector<TokenId> ngram_;        // scratch
};

}  // namespace ptd
