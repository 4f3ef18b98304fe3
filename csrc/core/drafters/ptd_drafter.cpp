#include "ptd/ptd_drafter.h"

#include <algorithm>
#include <utility>

#include "ptd/rng.h"

namespace ptd {
namespace {

// "At the start two roots, each a chain of one or two tokens drawn from the prompt."
constexpr std::size_t kInitialChains = 2;
constexpr int kDrawsPerChain = 8;       // tries for a root that is not taken yet
constexpr std::size_t kContextRun = 2;  // tokens of a chain from the end of the prompt
constexpr int kMostSuccessors = 64;

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
  if (options_.expansion_k < 1 || options_.expansion_k > kMostSuccessors) {
    throw InvalidArgument::for_field("expansion_k", options_.expansion_k,
                                     "an integer from 1 to " + std::to_string(kMostSuccessors));
  }
  if (!(options_.expansion_p > 0.0f && options_.expansion_p <= 1.0f)) {
    throw InvalidArgument("expansion_p=" + std::to_string(options_.expansion_p) +
                          " is not valid: allowed is a number above 0 and up to 1.");
  }
}

DrafterNeeds PTDDrafter::needs() const {
  DrafterNeeds needs;
  needs.max_nodes = options_.max_candidate_nodes + options_.max_draft_nodes;
  if (options_.expansion != Expansion::kGreedy) needs.top_k = options_.expansion_k;
  if (options_.expansion == Expansion::kTopP) needs.top_p = options_.expansion_p;
  return needs;
}

bool PTDDrafter::is_eos(TokenId token) const {
  return std::find(options_.eos_ids.begin(), options_.eos_ids.end(), token) !=
         options_.eos_ids.end();
}

void PTDDrafter::begin(Span<const TokenId> prompt) {
  if (!options_.share_pool) pool_.clear();
  seed_tokens_.clear();
  for (const TokenId token : prompt) {
    if (!is_eos(token)) seed_tokens_.push_back(token);
  }
  chain_draws_ = 0;
  std::vector<std::vector<TokenId>> given;
  if (options_.initialisation == Initialisation::kContext) given = context_chains(prompt);
  if (options_.initialisation == Initialisation::kNer && seed_source_) given = seed_source_(prompt);
  plant(given);
}

// The tokens before the root (the prompt's last token) without EOS, cut into runs from their end:
// the run next to the root comes first.
std::vector<std::vector<TokenId>> PTDDrafter::context_chains(Span<const TokenId> prompt) const {
  std::vector<std::vector<TokenId>> chains;
  std::size_t end = seed_tokens_.size();
  if (!is_eos(prompt[prompt.size() - 1])) --end;
  while (end > 0) {
    const std::size_t first = end > kContextRun ? end - kContextRun : 0;
    chains.emplace_back(seed_tokens_.begin() + static_cast<std::ptrdiff_t>(first),
                        seed_tokens_.begin() + static_cast<std::ptrdiff_t>(end));
    end = first;
  }
  return chains;
}

bool PTDDrafter::wants_chain() const {
  return chains_.size() < kInitialChains &&
         chains_.size() < static_cast<std::size_t>(options_.width);
}

void PTDDrafter::add_chain(const TokenId* first, const TokenId* last) {
  if (first == last || is_eos(*first)) return;
  const auto taken = [&](const auto& chain) { return chain.front() == *first; };
  if (std::any_of(chains_.begin(), chains_.end(), taken)) return;
  chains_.emplace_back(first, std::min(last, first + options_.depth));
}

void PTDDrafter::plant(const std::vector<std::vector<TokenId>>& given) {
  chains_.clear();
  for (const auto& chain : given) {
    if (wants_chain()) add_chain(chain.data(), chain.data() + chain.size());
  }
  const auto n = static_cast<float>(seed_tokens_.size());
  const auto uniform = [this] { return philox_uniform(options_.seed, chain_draws_++); };
  for (int tries = 0; !seed_tokens_.empty() && wants_chain() &&
                      tries < static_cast<int>(kInitialChains) * kDrawsPerChain;
       ++tries) {
    const auto first = std::min(static_cast<std::size_t>(uniform() * n), seed_tokens_.size() - 1);
    const std::size_t length = uniform() < 0.5f ? 1 : 2;
    const std::size_t end = std::min(first + length, seed_tokens_.size());
    add_chain(seed_tokens_.data() + first, seed_tokens_.data() + end);
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
  NodeId above_root = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool is_root = parents[i] == kNoNode;
    const NodeId parent = is_root ? above_root : step_rows_[static_cast<std::size_t>(parents[i])];
    const TokenId token = draft_tree_.tree().node(rows[i]).token;
    step_rows_.push_back(parent == kNoNode ? kNoNode : tree.add_draft(parent, token));
    if (is_root && options_.layout == Layout::kChained) above_root = step_rows_.back();
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

// For each draft row its next token, and with top-k or top-p further successors: as many in all as
// the row has listed ones (up to expansion_k).
int PTDDrafter::gather_predictions(const StepOutcome& outcome) {
  const int each = options_.expansion == Expansion::kGreedy ? 1 : options_.expansion_k;
  predictions_.assign(step_rows_.size() * static_cast<std::size_t>(each), kNoToken);
  TokenId* out = predictions_.data();
  for (const NodeId row : step_rows_) {
    const TokenId next = row == kNoNode ? kNoToken : outcome.next_token(row);
    out[0] = next;
    if (each > 1 && next >= 0) {
      const TokenId* listed = outcome.outputs.data() + row * outcome.stride + 1;
      const auto wanted = std::count_if(listed, listed + each, [](TokenId t) { return t >= 0; });
      int n = 1;
      for (int k = 0; k < each && n < wanted; ++k) {
        if (listed[k] >= 0 && listed[k] != next) out[n++] = listed[k];
      }
    }
    out += each;
  }
  return each;
}

void PTDDrafter::observe(const StepOutcome& outcome) {
  if (options_.recycle_verified) recycle(outcome);
  const int each = gather_predictions(outcome);
  draft_tree_.expand(predictions_, each);
  pool_.merge(draft_tree_);  // before pruning, with the fresh predictions as leaves
  draft_tree_.refill();
  draft_tree_.step_and_prune();
  if (seed_tokens_.empty()) {
    // The prompt held nothing but EOS: the output seeds the tree as soon as there is any.
    for (const TokenId token : outcome.new_tokens) {
      if (!is_eos(token)) seed_tokens_.push_back(token);
    }
  }
  if (draft_tree_.empty()) plant({});
}

}  // namespace ptd
