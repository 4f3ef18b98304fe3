#include "ptd/suffix_drafter.h"

#include <algorithm>
#include <string>
#include <tuple>

namespace ptd {
namespace {

using Place = SuffixTree::Place;

void check(const char* field, int value, int low, int high) {
  if (value < low || value > high) {
    throw InvalidArgument::for_field(
        field, value, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  }
}

void check_number(const char* field, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    throw InvalidArgument(std::string(field) + "=" + std::to_string(value) +
                          " is not valid: allowed is a number from " + std::to_string(low) +
                          " to " + std::to_string(high) + ".");
  }
}

}  // namespace

SuffixDrafter::SuffixDrafter(SuffixOptions options)
    : options_(options),
      text_(options.max_depth),
      young_(options.max_depth),
      old_(options.max_depth) {
  check("max_candidate_nodes", options_.max_candidate_nodes, 1, kMaxTreeNodes - 1);
  check("max_depth", options_.max_depth, 2, 64);
  check("index_tokens", options_.index_tokens, 0, 1 << 26);
  check_number("factor", options_.factor, 0.01, 64.0);
  check_number("min_probability", options_.min_probability, 0.0, 1.0);
}

void SuffixDrafter::begin(Span<const TokenId> prompt) {
  remember_output();
  text_.clear();
  young_.places.clear();
  old_.places.clear();
  for (const TokenId token : prompt) append(token);
}

void SuffixDrafter::append(TokenId token) {
  text_.append(token);
  if (options_.index_tokens == 0) return;
  young_.follow(token);
  old_.follow(token);
}

// A match that ends takes every longer one with it, so what is left are lengths from 1 on.
void SuffixDrafter::Index::follow(TokenId token) {
  places.emplace_back();
  const auto ends = [&](Place& place) { return !tree.advance(place, token); };
  places.erase(std::remove_if(places.begin(), places.end(), ends), places.end());
}

void SuffixDrafter::remember_output() {
  const auto half = static_cast<std::size_t>(options_.index_tokens / 2);
  const std::size_t kept = std::min(output_.size(), half);
  if (kept > 0) {
    if (young_.tree.text_size() + kept > half) {
      std::swap(young_, old_);
      young_.tree.clear();
    }
    young_.tree.begin_sequence();
    for (std::size_t i = output_.size() - kept; i < output_.size(); ++i) {
      young_.tree.append(output_[i]);
    }
  }
  output_.clear();
}

void SuffixDrafter::add_match(const SuffixTree& tree, Place place, int length, int source) {
  const int grown = static_cast<int>(options_.factor * length);
  const int budget = std::min({budget_, grown, options_.max_depth - length});
  if (budget > 0) matches_.push_back({&tree, place, length, budget, source});
}

// What the draft of a match can score at most: no node is more probable than the first one.
double SuffixDrafter::most(const Match& match) const {
  double first = 0.0;
  match.tree->for_each_next(match.place, [&](Place next, TokenId) {
    first = static_cast<double>(match.tree->count(next)) / match.tree->count(match.place);
    return false;
  });
  constexpr double kRounding = 1.0 + 1e-9;
  return first * match.budget * kRounding;
}

// Drafts from a match into draft_; returns the sum of the nodes' probabilities.
double SuffixDrafter::draft(const Match& match) {
  const SuffixTree& tree = *match.tree;
  const auto budget = static_cast<std::size_t>(match.budget);
  draft_.clear();
  frontier_.clear();
  int order = 0;
  const auto discover = [&](Place from, double probability, int parent) {
    std::size_t wanted = options_.as_tree ? budget - draft_.size() : 1;
    tree.for_each_next(from, [&](Place next, TokenId token) {
      const double share = static_cast<double>(tree.count(next)) / tree.count(from);
      if (probability * share < options_.min_probability || wanted == 0) return false;
      --wanted;
      frontier_.push_back({probability * share, order++, next, token, parent});
      std::push_heap(frontier_.begin(), frontier_.end());
      return true;
    });
  };
  double score = 0.0;
  discover(match.place, 1.0, kNoNode);
  while (!frontier_.empty()) {
    std::pop_heap(frontier_.begin(), frontier_.end());
    const Frontier best = frontier_.back();
    frontier_.pop_back();
    score += best.probability;
    draft_.push_back({best.token, best.parent});
    if (draft_.size() == budget) break;
    discover(best.place, best.probability, static_cast<int>(draft_.size()) - 1);
  }
  return score;
}

void SuffixDrafter::propose(Span<const TokenId>, TreeBuilder& tree) {
  budget_ = std::min(options_.max_candidate_nodes, tree.room());
  matches_.clear();
  for (int length = 1; length <= text_.open_suffixes(); ++length) {
    add_match(text_, text_.suffix(length), length, 0);
  }
  int source = 1;
  for (const Index* index : {&young_, &old_}) {
    int length = static_cast<int>(index->places.size());
    for (const Place& place : index->places) add_match(index->tree, place, length--, source);
    ++source;
  }
  // The large budgets first: most of the others then cannot win and are not drafted.
  std::sort(matches_.begin(), matches_.end(), [](const Match& a, const Match& b) {
    return std::make_tuple(-a.budget, -a.length, a.source) <
           std::make_tuple(-b.budget, -b.length, b.source);
  });
  best_.clear();
  double best_score = 0.0;
  const Match* winner = nullptr;
  for (const Match& match : matches_) {
    const double limit = most(match);
    if (limit == 0.0 || limit < best_score) continue;
    const double score = draft(match);
    if (draft_.empty() || score < best_score) continue;
    if (winner != nullptr && score == best_score &&
        std::make_tuple(-winner->length, winner->source) <
            std::make_tuple(-match.length, match.source)) {
      continue;
    }
    best_score = score;
    winner = &match;
    std::swap(best_, draft_);
  }
  placed_.clear();
  for (const DraftNode& node : best_) {
    const NodeId parent =
        node.parent == kNoNode ? 0 : placed_[static_cast<std::size_t>(node.parent)];
    placed_.push_back(parent == kNoNode ? kNoNode : tree.add_candidate(parent, node.token));
  }
}

void SuffixDrafter::observe(const StepOutcome& outcome) {
  for (const TokenId token : outcome.new_tokens) {
    append(token);
    if (options_.index_tokens > 0) output_.push_back(token);
  }
}

}  // namespace ptd
