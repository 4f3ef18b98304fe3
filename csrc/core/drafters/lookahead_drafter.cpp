#include "ptd/lookahead_drafter.h"

#include <algorithm>

namespace ptd {
namespace {

int checked(const char* field, int value, int low, int high) {
  if (value < low || value > high) {
    throw InvalidArgument::for_field(
        field, value, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return value;
}

}  // namespace

LookaheadDrafter::LookaheadDrafter(LookaheadOptions options)
    : options_(options),
      draws_(options.seed),
      window_(checked("level", options.level, 3, 16) - 1,
              checked("window", options.window, 1, kMaxTreeNodes)),
      pool_(options.level - 1, checked("guesses", options.guesses, 1, kMaxTreeNodes),
            options.pool_max_keys) {
  checked("rows a step", needs().max_nodes, 1, kMaxTreeNodes - 1);
}

DrafterNeeds LookaheadDrafter::needs() const {
  const int full = window_.size(options_.level - 1) + options_.guesses * (options_.level - 1);
  return {std::max(window_.max_size(), full), 0, options_.faithful ? options_.level - 2 : 0};
}

void LookaheadDrafter::begin(Span<const TokenId> prompt) {
  pool_.clear();
  recent_.clear();
  draws_.begin(prompt);
  first_level_.clear();
  for (int i = 0; i < window_.first_columns(); ++i) first_level_.push_back(draws_.token());
  window_.begin(first_level_);
  read(prompt);
}

void LookaheadDrafter::read(Span<const TokenId> tokens) {
  if (!options_.prompt_ngrams) return;
  const auto n = static_cast<std::size_t>(options_.level);
  for (const TokenId token : tokens) {
    if (recent_.size() == n) recent_.erase(recent_.begin());
    recent_.push_back(token);
    if (recent_.size() == n) pool_.insert(recent_.front(), {recent_.data() + 1, n - 1});
  }
}

void LookaheadDrafter::propose(Span<const TokenId> committed, TreeBuilder& tree) {
  if (window_.full()) {
    // The window goes first: without its rows there would be no more n-grams.
    const Span<const TokenId> known = pool_.retrieve(committed[committed.size() - 1]);
    add_newest_chains(known, pool_.length(), tree.room() - window_.size(), tree);
  }
  propose_window(tree);
}

void LookaheadDrafter::propose_window(TreeBuilder& tree) {
  const auto add = [&tree](NodeId parent, TokenId token) {
    return parent == kNoNode ? kNoNode : tree.add_draft(parent, token);
  };
  rows_.clear();
  chain_rows_.assign(1, 0);
  for (const TokenId token : window_.level(0)) {
    rows_.push_back(add(chain_rows_.back(), token));
    chain_rows_.push_back(rows_.back());
  }
  if (window_.filled() == 1) return;
  rows_.assign(chain_rows_.begin(), chain_rows_.end());
  for (int l = 1; l < window_.filled(); ++l) {
    const auto& level = window_.level(l);
    for (std::size_t i = 0; i < level.size(); ++i) rows_[i] = add(rows_[i], level[i]);
  }
}

void LookaheadDrafter::collect_ngrams(const StepOutcome& outcome) {
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const TokenId next = rows_[i] == kNoNode ? kNoToken : outcome.next_token(rows_[i]);
    if (next < 0) continue;
    ngram_.clear();
    for (int l = 1; l < window_.filled(); ++l) ngram_.push_back(window_.level(l)[i]);
    ngram_.push_back(next);
    pool_.insert(i == 0 ? outcome.tree->token(0) : window_.level(0)[i - 1], ngram_);
  }
}

void LookaheadDrafter::observe(const StepOutcome& outcome) {
  if (window_.full()) collect_ngrams(outcome);
  window_.advance(outcome, rows_, draws_);
  read(outcome.new_tokens);
}

}  // namespace ptd
