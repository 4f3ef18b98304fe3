#include "ptd/level_window.h"

#include <algorithm>

namespace ptd {

LevelWindow::LevelWindow(int full_levels, int columns)
    : full_levels_(full_levels), columns_(columns), levels_(static_cast<std::size_t>(full_levels)) {
  // The longest of them is level 0; levels change places.
  const auto longest = static_cast<std::size_t>(first_columns());
  for (std::vector<TokenId>& level : levels_) level.reserve(longest);
  predictions_.reserve(longest);
}

void LevelWindow::begin(Span<const TokenId> first) {
  filled_ = 1;
  levels_[0].assign(first.begin(), first.end());
}

void LevelWindow::advance(const StepOutcome& outcome, Span<const NodeId> rows, PromptDraws& draws) {
  predictions_.clear();
  for (const NodeId row : rows) {
    const TokenId next = row == kNoNode ? kNoToken : outcome.next_token(row);
    predictions_.push_back(next < 0 ? draws.token() : next);
  }
  const auto drop_first = [](std::vector<TokenId>& level) { level.erase(level.begin()); };
  if (full()) {
    // The oldest level goes. The next one loses its first token, which the text has passed.
    std::rotate(levels_.begin(), levels_.begin() + 1, levels_.end());
    drop_first(levels_.front());
    levels_.back().assign(predictions_.begin(), predictions_.end());
    return;
  }
  // Level 1 takes all predictions: column i is below token i - 1 of what level 0 becomes. A later
  // level has the columns of the one above it, which loses its first one.
  const int skipped = filled_ == 1 ? 0 : 1;
  for (int l = 0; l < filled_; ++l) drop_first(levels_[static_cast<std::size_t>(l)]);
  levels_[static_cast<std::size_t>(filled_)].assign(predictions_.begin() + skipped,
                                                    predictions_.end());
  ++filled_;
}

int LevelWindow::size_below_first(int filled) const {
  return (filled - 1) * (columns_ + full_levels_ - filled);
}

int LevelWindow::size(int filled) const {
  return columns_ + full_levels_ - 1 - filled + size_below_first(filled);
}

int LevelWindow::max_size() const {
  int most = 0;
  for (int filled = 1; filled <= full_levels_; ++filled) most = std::max(most, size(filled));
  return most;
}

}  // namespace ptd
