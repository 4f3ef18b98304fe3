// LevelWindow: the window of Lookahead and Self-Draft, levels of tokens in columns. The model's
// predictions for the last level become a new one every step; once full, the oldest level goes.
// Source: Lookahead decoding (Fu et al., 2024).
//
// With f levels filled, level 0 has columns + full_levels - 1 - f tokens and each later level one
// more: a step of the warm-up takes a column from every level and adds a level. Full, level 0 has
// columns - 1 tokens, the others `columns`: column 0 stands below the root, column i below token
// i - 1 of level 0.
#pragma once

#include <vector>

#include "ptd/drafter.h"
#include "ptd/prompt_draws.h"
#include "ptd/types.h"

namespace ptd {

class LevelWindow {
 public:
  // full_levels: levels of a full window (>= 2). columns: of its levels 1 and later (>= 1).
  LevelWindow(int full_levels, int columns);

  // Forgets all levels. Level 0 has the tokens `first`, first_columns() of them.
  void begin(Span<const TokenId> first);
  int first_columns() const { return columns_ + full_levels_ - 2; }

  int filled() const { return filled_; }
  bool full() const { return filled_ == full_levels_; }
  const std::vector<TokenId>& level(int l) const { return levels_[static_cast<std::size_t>(l)]; }

  // One step: takes up what the model says after the last level, whose columns were `rows` of the
  // step (kNoNode: none). A column without prediction begins anew with a token of the prompt.
  void advance(const StepOutcome& outcome, Span<const NodeId> rows, PromptDraws& draws);

  // Tokens of all levels, or all but the first, with `filled` of them.
  int size(int filled) const;
  int size_below_first(int filled) const;
  int size() const { return size(filled_); }
  // Most tokens it ever has: some windows are larger before they are full.
  int max_size() const;

 private:
  int full_levels_;
  int columns_;
  int filled_ = 1;
  std::vector<std::vector<TokenId>> levels_;
  std::vector<TokenId> predictions_;  // scratch
};

}  // namespace ptd
