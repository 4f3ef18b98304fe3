#include "ptd/ptd_drafter.h"

#include <algorithm>
#include <utility>

#include "ptd/rng.h"

namespace ptd {
namespace {

// "At the start two roots, each a chain of one or two tokens drawn from the prompt."
constexpr std::size_t kInitialChains = 2;
constexpr int kDrawsPerChain = 8;  // tries for a root that is not taken yet

}  // namespace

PTDDrafter::PTDDrafter(PTDOptions options)
    : options_(std::move(options)),
      draft_tree_(options_.width, options_.depth, options_.max_draft_nodes, options_.eos_ids),
      pool_(options_.pool_nodes_per_key, options_.pool_max_keys) {
  const int most = kMaxTreeNodes - 1 - options_.max_draft_nodes;
  if (options_.max_candidate_nodes < 0 || options_.max_candidate_nodes > most) {
    throw InvalidArgument::for_field(
        "max_candidate_nodes", options_.max_candidate_nodes,
        "an integer from 0 to " + std::to_string(most) + " (255 less max_draft_nodes)");
  }
}

DrafterNeeds PTDDrafter::needs() const {
  return {options_.max_candidate_nodes + options_.max_draft_nodes, 0};
}

void PTDDrafter::begin(Span<const TokenId> prompt) {
  if (!options_.share_pool) pool_.clear();
  seed_tokens_.clear();
  for (const TokenId token : prompt) {
    const auto& eos = options_.eos_ids;
    if (std::find(eos.begin(), eos.end(), token) == eos.end()) seed_tokens_.push_back(token);
  }
  chain_draws_ = 0;
  plant();
}

void PTDDrafter::plant() {
  chains_.clear();
  const auto n = static_cast<float>(seed_tokens_.size());
  const auto uniform = [this] { return philox_uniform(options_.seed, chain_draws_++); };
  for (int tries = 0; !seed_tokens_.empty() && chains_.size() < kInitialChains &&
                      chains_.size() < static_cast<std::size_t>(options_.width) &&
                      tries < static_cast<int>(kInitialChains) * kDrawsPerChain;
       ++tries) {
    const auto first = std::min(static_cast<std::size_t>(uniform() * n), seed_tokens_.size() - 1);
    const std::size_t length = uniform() < 0.5f ? 1 : 2;
    const std::size_t end = std::min(first + length, seed_tokens_.size());
    const auto taken = [&](const auto& chain) { return chain.front() == seed_tokens_[first]; };
    if (std::any_of(chains_.begin(), chains_.end(), taken)) continue;
    chains_.emplace_back(seed_tokens_.begin() + static_cast<std::ptrdiff_t>(first),
                         seed_tokens_.begin() + static_cast<std::ptrdiff_t>(end));
  }
  draft_tree_.init(chains_);
}

void PTDDrafter::propose(Span<const TokenId> committed, TreeBuilder& tree) {
  const int budget = std::min(options_.max_candidate_nodes, tree.room());
  pool_.retrieve(committed[committed.size() - 1], budget, candidates_);
  step_rows_.clear();
  for (const CandidateNode& c : candidates_) {
    const NodeId parent = c.parent == kNoNode ? 0 : step_rows_[static_cast<std::size_t>(c.parent)];
    step_rows_.push_back(parent == kNoNode ? kNoNode : tree.add_candidate(parent, c.token));
  }
  const auto& rows = draft_tree_.rows();
  const auto& parents = draft_tree_.parent_rows();
  step_rows_.clear();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const NodeId parent =
        parents[i] == kNoNode ? 0 : step_rows_[static_cast<std::size_t>(parents[i])];
    const TokenId token = draft_tree_.tree().node(rows[i]).token;
    step_rows_.push_back(parent == kNoNode ? kNoNode : tree.add_draft(parent, token));
  }
}

void PTDDrafter::recycle(const StepOutcome& outcome) {
  const TreeBuilder& step = *outcome.tree;
  const NodeId root = verified_.create(step.token(0));
  verified_rows_.assign(1, root);
  for (int row = 1; row < step.n_verify(); ++row) {
    const NodeId parent = verified_rows_[static_cast<std::size_t>(step.parent(row))];
    verified_rows_.push_back(verified_.append_child(parent, step.token(row)));
  }
  for (int row = 0; row < step.n_verify(); ++row) {
    const NodeId node = verified_rows_[static_cast<std::size_t>(row)];
    const TokenId next = outcome.next_token(row);
    if (next >= 0 && verified_.find_child(node, next) == kNoNode)
      verified_.append_child(node, next);
  }
  verified_rows_.clear();
  for (NodeId at = root; at != kNoNode; at = verified_.next_preorder(at, root)) {
    verified_rows_.push_back(at);
  }
  pool_.merge(verified_, verified_rows_);
  verified_.remove_subtree(root);
}

void PTDDrafter::observe(const StepOutcome& outcome) {
  if (options_.recycle_verified) recycle(outcome);
  predictions_.clear();
  for (const NodeId row : step_rows_) {
    predictions_.push_back(row == kNoNode ? kNoToken : outcome.next_token(row));
  }
  draft_tree_.expand(predictions_);
  pool_.merge(draft_tree_);  // before pruning, with the fresh predictions as leaves
  draft_tree_.refill();
  draft_tree_.step_and_prune();
  if (seed_tokens_.empty()) {
    // The prompt held nothing but EOS: the output seeds the tree as soon as there is any.
    for (const TokenId token : outcome.new_tokens) {
      const auto& eos = options_.eos_ids;
      if (std::find(eos.begin(), eos.end(), token) == eos.end()) seed_tokens_.push_back(token);
    }
  }
  if (draft_tree_.empty()) plant();
}

}  // namespace ptd
