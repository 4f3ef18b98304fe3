#include "ptd/self_draft_drafter.h"

#include <algorithm>
#include <limits>
#include <utility>

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

SelfDraftDrafter::SelfDraftDrafter(SelfDraftOptions options)
    : options_(std::move(options)),
      draws_(options_.seed),
      window_(checked("length", options_.length, 3, 64) - 1,
              checked("branches", options_.branches, 1, 64)),
      pool_(checked("ngram", options_.ngram, 2, options_.length - 1),
            checked("ngrams_per_key", options_.ngrams_per_key, 1, kMaxTreeNodes),
            options_.pool_max_keys) {
  checked("corpus_candidates", options_.corpus_candidates, 0, kMaxTreeNodes);
  for (const auto& [key, ngrams] : options_.corpus) {
    if (key < 0 || ngrams.size() % static_cast<std::size_t>(options_.ngram) != 0) {
      throw InvalidArgument::for_field(
          "corpus key", key,
          "a token id >= 0 with n-grams of " + std::to_string(options_.ngram) + " tokens");
    }
    for (const TokenId token : ngrams) {
      checked("corpus token", token, 0, std::numeric_limits<TokenId>::max());
    }
  }
  checked("rows a step", needs().max_nodes, 1, kMaxTreeNodes - 1);
}

DrafterNeeds SelfDraftDrafter::needs() const {
  // Perturbations that stay may have a second token.
  const int second_tokens = options_.branches - 1;
  int chains = options_.ngrams_per_key;
  if (!options_.corpus.empty()) chains += options_.corpus_candidates;
  const int full = window_.size(options_.length - 1) + chains * options_.ngram;
  return {second_tokens + std::max(window_.max_size(), full), 0,
          options_.faithful ? options_.ngram - 1 : 0};
}

void SelfDraftDrafter::begin(Span<const TokenId> prompt) {
  pool_.clear();
  recent_.clear();
  draws_.begin(prompt);
  const int warm_up = options_.length - 2;  // it drops as many perturbations: one token will do
  perturbations_.resize(static_cast<std::size_t>(window_.first_columns()));
  first_level_.clear();
  for (std::size_t i = 0; i < perturbations_.size(); ++i) {
    const bool one = i < static_cast<std::size_t>(warm_up) || draws_.uniform() < 0.5;
    perturbations_[i].reserve(3);  // two tokens, and one more while they shift
    perturbations_[i].assign(1, draws_.token());
    if (!one) perturbations_[i].push_back(draws_.token());
    first_level_.push_back(perturbations_[i].back());
  }
  window_.begin(first_level_);
  read(prompt);
}

void SelfDraftDrafter::read(Span<const TokenId> tokens) {
  const auto n = static_cast<std::size_t>(options_.ngram) + 1;
  for (const TokenId token : tokens) {
    if (recent_.size() == n) recent_.erase(recent_.begin());
    recent_.push_back(token);
    if (recent_.size() == n) pool_.insert(recent_.front(), {recent_.data() + 1, n - 1});
  }
}

int SelfDraftDrafter::branch_rows() const {
  int rows = window_.size_below_first(window_.filled());
  for (const auto& tokens : perturbations_) rows += static_cast<int>(tokens.size());
  return rows;
}

void SelfDraftDrafter::propose(Span<const TokenId> committed, TreeBuilder& tree) {
  if (window_.full()) propose_chains(committed[committed.size() - 1], tree);
  propose_branches(tree);
}

void SelfDraftDrafter::propose_chains(TokenId root, TreeBuilder& tree) {
  // The branches go first: without their rows there would be no more n-grams.
  const int room = std::max(0, tree.room() - branch_rows());
  const Span<const TokenId> known = pool_.retrieve(root);
  int left = room / options_.ngram - add_newest_chains(known, options_.ngram, room, tree);
  left = std::min(left, options_.corpus_candidates);
  const auto found = options_.corpus.find(root);
  if (found == options_.corpus.end()) return;
  const auto stride = static_cast<std::size_t>(options_.ngram);
  for (std::size_t i = 0; i < found->second.size() && left > 0; i += stride) {
    const Span<const TokenId> ngram{found->second.data() + i, stride};
    const auto same = [&](std::size_t at) {
      return std::equal(ngram.begin(), ngram.end(), known.data() + at);
    };
    bool is_known = false;
    for (std::size_t at = 0; at < known.size() && !is_known; at += stride) is_known = same(at);
    if (is_known) continue;
    add_chain(ngram, tree);
    --left;
  }
}

void SelfDraftDrafter::propose_branches(TreeBuilder& tree) {
  draft_rows_.clear();
  column_0_.clear();
  const auto add = [&](NodeId parent, TokenId token, std::vector<NodeId>& kept) {
    const NodeId row = parent == kNoNode ? kNoNode : tree.add_draft(parent, token);
    if (row != kNoNode) kept.push_back(row);
    return row;
  };
  rows_.assign(1, 0);
  for (const auto& tokens : perturbations_) {
    NodeId at = 0;
    for (const TokenId token : tokens) at = add(at, token, draft_rows_);
    rows_.push_back(at);
  }
  if (window_.filled() == 1) rows_.erase(rows_.begin());  // no column hangs below the root yet
  for (int l = 1; l < window_.filled(); ++l) {
    const auto& level = window_.level(l);
    for (std::size_t i = 0; i < level.size(); ++i) {
      rows_[i] = add(rows_[i], level[i], i == 0 ? column_0_ : draft_rows_);
    }
  }
}

void SelfDraftDrafter::learn_branches(const StepOutcome& outcome) {
  // Every run of `ngram` rows down a branch, and what the model says after it.
  const auto n = static_cast<std::size_t>(options_.ngram);
  ngram_.resize(n);
  for (const NodeId row : draft_rows_) {
    if (outcome.tree->depth(row) < options_.ngram || outcome.next_token(row) < 0) continue;
    ngram_[n - 1] = outcome.next_token(row);
    NodeId at = row;
    for (std::size_t i = n - 1; i > 0; --i, at = outcome.tree->parent(at)) {
      ngram_[i - 1] = outcome.tree->token(at);
    }
    pool_.insert(outcome.tree->token(at), ngram_);
  }
}

void SelfDraftDrafter::learn_column_0(const StepOutcome& outcome) {
  // The text runs on down column 0: n-grams of its end, the column and each row's prediction.
  const auto n = static_cast<std::size_t>(options_.ngram);
  ngram_.assign(recent_.begin(), recent_.end());
  for (std::size_t i = 0; i <= column_0_.size(); ++i) {
    const NodeId row = i == 0 ? 0 : column_0_[i - 1];
    if (i > 0) ngram_.push_back(outcome.tree->token(row));
    const TokenId next = outcome.next_token(row);
    if (next < 0 || ngram_.size() < n) continue;
    ngram_.push_back(next);
    const TokenId* end = ngram_.data() + ngram_.size();
    pool_.insert(*(end - n - 1), {end - n, n});
    ngram_.pop_back();
  }
}

void SelfDraftDrafter::shift_perturbations() {
  if (perturbations_.size() >= static_cast<std::size_t>(options_.branches)) {
    perturbations_.erase(perturbations_.begin());
    return;
  }
  for (std::size_t i = 0; i < perturbations_.size(); ++i) {
    auto& tokens = perturbations_[i];
    tokens.push_back(window_.level(0)[i]);
    tokens.erase(tokens.begin());
  }
}

void SelfDraftDrafter::observe(const StepOutcome& outcome) {
  if (window_.full()) {
    learn_branches(outcome);
    learn_column_0(outcome);
  }
  window_.advance(outcome, rows_, draws_);
  shift_perturbations();
  read(outcome.new_tokens);
}

}  // namespace ptd
