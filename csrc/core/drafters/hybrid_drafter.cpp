#include "ptd/hybrid_drafter.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ptd/rng.h"

namespace ptd {
namespace {

constexpr float kLeastProbability = 1e-4f;
constexpr float kLeastShare = 0.2f;  // of the last tree's least probable node: worth remembering
constexpr int kExploreEvery = 128;   // steps; then a neighbouring size is measured
constexpr int kPoolNodesPerKey = 60;
constexpr int kPoolMaxKeys = 4096;

void check(const char* field, long long value, long long low, long long high) {
  if (value < low || value > high) {
    throw InvalidArgument::for_field(
        field, value, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  }
}

}  // namespace

HybridDrafter::HybridDrafter(HybridOptions options)
    : options_(std::move(options)),
      sources_(options_.sources, std::clamp(options_.table_entries, 16, 1 << 24), kPoolNodesPerKey,
               kPoolMaxKeys),
      draft_tree_(options_.width, options_.depth, std::max(1, options_.max_draft_nodes),
                  options_.eos_ids),
      counts_(kDraftSources) {
  check("max_candidate_nodes", options_.max_candidate_nodes, 1, kMaxTreeNodes - 1);
  check("max_draft_nodes", options_.max_draft_nodes, 0,
        kMaxTreeNodes - 1 - options_.max_candidate_nodes);
  check("successors", options_.successors, 1, SuccessorTable::kRanks);
  check("table_entries", options_.table_entries, 16, 1 << 24);
}

DrafterNeeds HybridDrafter::needs() const {
  DrafterNeeds needs;
  needs.max_nodes = options_.max_candidate_nodes + options_.max_draft_nodes;
  needs.top_k = options_.successors;
  needs.prompt_outputs = options_.prompt_outputs;
  needs.step_cost = options_.auto_budget;
  return needs;
}

void HybridDrafter::begin(Span<const TokenId> prompt) {
  if (!options_.keep_statistics) {
    model_.reset();
    tree_size_.begin();
    path_discount_.begin();
  }
  sources_.begin(options_.keep_tables);
  for (const TokenId token : prompt) sources_.append(token);
  prompt_.assign(prompt.begin(), prompt.end());
  prompt_shown_ = 0;
  prompt_key_ = ContextKey();
  runners_up_.clear();
  planned_.clear();
  root_ = kNoToken;
  least_ = 0.0f;
  counts_.assign(kDraftSources, {});
  budgets_.clear();
  std::vector<std::vector<TokenId>> chains;
  if (options_.max_draft_nodes > 0) {
    for (std::uint64_t draw = 0; draw < 2; ++draw) {
      const float at = philox_uniform(options_.seed, draw) * static_cast<float>(prompt.size());
      chains.push_back({prompt[std::min(static_cast<std::size_t>(at), prompt.size() - 1)]});
    }
  }
  draft_tree_.init(chains);
}

void HybridDrafter::observe_prompt(int first, Span<const TokenId> outputs, int stride) {
  const auto width = static_cast<std::size_t>(stride);
  for (; prompt_shown_ < first; ++prompt_shown_) {
    prompt_key_ = prompt_key_.next(prompt_[static_cast<std::size_t>(prompt_shown_)]);
  }
  for (std::size_t at = 0; at + width <= outputs.size(); at += width, ++prompt_shown_) {
    prompt_key_ = prompt_key_.next(prompt_[static_cast<std::size_t>(prompt_shown_)]);
    sources_.remember(prompt_key_, {outputs.data() + at, width}, true);
  }
}

void HybridDrafter::expand(int row, int depth, float probability) {
  auto& place = places_[static_cast<std::size_t>(row)];
  sources_.gather(place, depth, row == 0 ? Span<const TokenId>(runners_up_) : Span<const TokenId>(),
                  model_, node_);
  const float least = std::max(kLeastProbability, kLeastShare * least_);
  for (int i = 0; i < node_.size(); ++i) {
    const float path = (depth > 0 ? discount_ : 1.0f) * probability * node_.probability(i);
    if (path < least) continue;
    frontier_.push_back({path, row, node_.token(i), node_.sources(i)});
    std::push_heap(frontier_.begin(), frontier_.end());
  }
}

bool HybridDrafter::filled_above(float bound, int room) const {
  if (static_cast<int>(frontier_.size()) < room) return false;
  int above = 0;
  for (const Frontier& waiting : frontier_) above += waiting.probability >= bound ? 1 : 0;
  return above >= room;
}

void HybridDrafter::plan_tree(int budget, int max_depth) {
  planned_.clear();
  frontier_.clear();
  places_.assign(1, sources_.text_end());
  depths_.assign(1, 0);
  if (budget <= 0 || max_depth <= 0) return;
  discount_ = path_discount_.value();
  const auto& eos = options_.eos_ids;
  expand(0, 0, 1.0f);
  while (!frontier_.empty()) {
    std::pop_heap(frontier_.begin(), frontier_.end());
    const Frontier best = frontier_.back();
    frontier_.pop_back();
    const auto above = static_cast<std::size_t>(best.parent);
    planned_.push_back({best.token, best.parent, best.probability, best.sources, false});
    places_.push_back(sources_.child(places_[above], best.token));
    depths_.push_back(depths_[above] + 1);
    const int row = static_cast<int>(planned_.size());
    if (row == budget) break;
    const bool ends = std::find(eos.begin(), eos.end(), best.token) != eos.end();
    if (ends || depths_.back() >= max_depth) continue;
    // Asking the sources is most of the work: not where what waits already fills the tree.
    if (!filled_above(discount_ * best.probability, budget - row)) {
      expand(row, depths_.back(), best.probability);
    }
  }
  least_ = static_cast<int>(planned_.size()) == budget ? planned_.back().probability : 0.0f;
}

int HybridDrafter::choose_size(int prefix_len) {
  const int most = static_cast<int>(planned_.size());
  if (!options_.auto_budget) return most;
  if (!cost_.fixed() && cost_.counts()[0] < 2) {
    return 0;  // what one row costs is what the rest is compared with
  }
  promises_.clear();
  for (const PlannedNode& node : planned_) promises_.push_back(node.probability);
  const int drafts = options_.max_draft_nodes > 0 ? draft_tree_.size() : 0;
  const int size = tree_size_.choose(promises_, drafts, prefix_len, cost_);
  const bool explores = !cost_.fixed() && !budgets_.empty() && budgets_.size() % kExploreEvery == 0;
  return explores ? std::min(most, size + size / 2 + 2) : size;
}

void HybridDrafter::propose(Span<const TokenId> committed, TreeBuilder& tree) {
  plan_tree(std::min(options_.max_candidate_nodes, tree.room()), tree.max_depth());
  prefix_len_ = static_cast<int>(committed.size()) - 1;
  root_ = committed[committed.size() - 1];
  const auto size = static_cast<std::size_t>(choose_size(prefix_len_));
  planned_.resize(size);
  places_.resize(size + 1);
  for (const PlannedNode& node : planned_) tree.add_candidate(node.parent, node.token);
  budgets_.push_back(static_cast<int>(size));
  draft_keys_.clear();
  draft_rows_.clear();
  if (options_.max_draft_nodes > 0) add_drafts(tree);
}

void HybridDrafter::add_drafts(TreeBuilder& tree) {
  const auto& drafts = draft_tree_.rows();
  const auto& parents = draft_tree_.parent_rows();
  const ContextKey text_end = places_[0].key;
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    const bool below_root = parents[i] == kNoNode;
    const auto above = below_root ? 0 : static_cast<std::size_t>(parents[i]);
    const NodeId parent = below_root ? 0 : draft_rows_[above];
    const TokenId token = draft_tree_.tree().node(drafts[i]).token;
    draft_rows_.push_back(parent == kNoNode ? kNoNode : tree.add_draft(parent, token));
    draft_keys_.push_back((below_root ? text_end : draft_keys_[above]).next(token));
  }
}

void HybridDrafter::learn(const StepOutcome& outcome) {
  // The rows whose next token is known by now, with what was proposed behind them: nothing has
  // changed since, so the sources say the same again.
  const auto n_verify = static_cast<std::size_t>(outcome.tree->n_verify());
  on_path_.assign(n_verify, false);
  on_path_[0] = true;
  for (const NodeId row : outcome.accepted) on_path_[static_cast<std::size_t>(row)] = true;
  for (std::size_t row = 0; row < n_verify; ++row) {
    const TokenId truth = outcome.next_token(static_cast<NodeId>(row));
    if (!on_path_[row] || truth < 0) continue;
    sources_.gather(places_[row], outcome.tree->depth(static_cast<NodeId>(row)),
                    row == 0 ? Span<const TokenId>(runners_up_) : Span<const TokenId>(), model_,
                    node_);
    model_.learn(node_, truth);
  }
  path_discount_.begin_step();
  for (std::size_t row = 1; row < n_verify; ++row) {
    PlannedNode& node = planned_[row - 1];
    node.accepted = on_path_[row];
    const auto above = static_cast<std::size_t>(node.parent);
    if (above > 0 && on_path_[above]) {
      const double path = static_cast<double>(discount_ * planned_[above - 1].probability);
      path_discount_.observe(static_cast<double>(node.probability) / path, node.accepted);
    }
    for (std::size_t s = 0; s < counts_.size(); ++s) {
      if (!(node.sources >> s & 1u)) continue;
      ++counts_[s].proposed;
      counts_[s].accepted += node.accepted ? 1 : 0;
      counts_[s].alone += node.accepted && node.sources == 1u << s ? 1 : 0;
    }
  }
}

void HybridDrafter::observe(const StepOutcome& outcome) {
  const auto stride = static_cast<std::size_t>(outcome.stride);
  const auto outputs_of = [&](NodeId row) {
    return Span<const TokenId>(outcome.outputs.data() + static_cast<std::size_t>(row) * stride,
                               stride);
  };
  learn(outcome);
  // Rows that came to be part of the text are written last: they win.
  for (std::size_t i = 0; i < draft_rows_.size(); ++i) {
    if (draft_rows_[i] != kNoNode) {
      sources_.remember(draft_keys_[i], outputs_of(draft_rows_[i]), false);
    }
  }
  for (const bool of_text : {false, true}) {
    for (std::size_t row = 0; row < on_path_.size(); ++row) {
      if (on_path_[row] == of_text) {
        sources_.remember(places_[row].key, outputs_of(static_cast<NodeId>(row)), of_text);
      }
    }
  }
  const NodeId last = outcome.accepted.empty() ? 0 : outcome.accepted[outcome.accepted.size() - 1];
  runners_up_.clear();
  for (std::size_t k = 1; k < stride; ++k) {
    const TokenId token = outputs_of(last)[k];
    if (token >= 0 && token != outcome.next_token(last)) runners_up_.push_back(token);
  }
  for (const TokenId token : outcome.new_tokens) sources_.append(token);
  if (options_.max_draft_nodes > 0) grow_draft_tree(outcome);
  if (outcome.seconds > 0.0) {
    cost_.observe(outcome.tree->size(), outcome.seconds);
    double promised = 0.0;
    for (const PlannedNode& node : planned_) promised += static_cast<double>(node.probability);
    tree_size_.observe(promised, static_cast<int>(outcome.accepted.size()),
                       static_cast<int>(outcome.new_tokens.size()),
                       cost_.of(outcome.tree->size(), prefix_len_));
  }
}

void HybridDrafter::grow_draft_tree(const StepOutcome& outcome) {
  predictions_.clear();
  for (const NodeId row : draft_rows_) {
    predictions_.push_back(row == kNoNode ? kNoToken : outcome.next_token(row));
  }
  draft_tree_.expand(predictions_);
  sources_.pool().merge(draft_tree_);  // before pruning, with the fresh predictions as leaves
  draft_tree_.refill();
  draft_tree_.step_and_prune();
}

}  // namespace ptd
