#include "ptd/session.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "ptd/rng.h"
#include "ptd/verify.h"

namespace ptd {
namespace {

// The recursive walk's numbers: the row's absolute position and the draw number (0 is the coupled
// sampler's).
class PositionUniforms final : public UniformSource {
 public:
  PositionUniforms(std::uint64_t seed, int root_position)
      : seed_(seed), root_position_(static_cast<std::uint64_t>(root_position)) {}
  double draw(int depth, int k) override {
    return philox_uniform(seed_, root_position_ + static_cast<std::uint64_t>(depth),
                          static_cast<std::uint32_t>(k));
  }

 private:
  std::uint64_t seed_;
  std::uint64_t root_position_;
};

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

void check_limits(const SessionLimits& limits) {
  const auto check = [](const char* field, int value, int low, int high) {
    if (value < low || value > high) {
      throw InvalidArgument::for_field(
          field, value, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
    }
  };
  check("max_seq_len", limits.max_seq_len, 1, 1 << 30);
  check("max_path", limits.max_path, 1, kMaxTreeNodes);
  check("max_nodes", limits.max_nodes, 1, kMaxTreeNodes);
  check("output_top_k", limits.top_k, 0, 1 << 20);
  check("vocab_size", limits.vocab_size, 0, std::numeric_limits<int>::max());
  for (const int bucket : limits.node_buckets) check("node_buckets", bucket, 1, kMaxTreeNodes);
}

// Ids that come from outside: one that no drafter could propose would fail a later step, in a
// drafter that keeps what it learnt even a later request.
void check_tokens(const char* field, Span<const TokenId> tokens, TokenId low, int vocab_size) {
  const TokenId end = vocab_size > 0 ? vocab_size : std::numeric_limits<TokenId>::max();
  for (const TokenId token : tokens) {
    if (token < low || token >= end) {
      throw InvalidArgument::for_field(field, token,
                                       "a token id from " + std::to_string(low) + " to " +
                                           std::to_string(end - 1) + " (vocab_size - 1)");
    }
  }
}

// Of rows [n, stride]. What stands behind a row without a next token means nothing.
void check_rows(Span<const TokenId> outputs, std::size_t stride, int vocab_size) {
  for (std::size_t row = 0; row < outputs.size(); row += stride) {
    const bool predicted = outputs[row] != kNoToken;
    check_tokens("token of the output", {outputs.data() + row, predicted ? stride : 1}, kNoToken,
                 vocab_size);
  }
}

}  // namespace

// The right to call a drafter, for the length of one call of the session.
class DrafterLease {
 public:
  DrafterLease(Drafter& drafter, std::uint64_t serial, bool begins) : drafter_(drafter) {
    if (drafter_.in_use_.exchange(true)) {
      throw std::logic_error("the drafter is in use by another session; give each its own drafter");
    }
    if (begins) drafter_.owner_ = serial;
    if (drafter_.owner_ != serial) {
      drafter_.in_use_.store(false);
      throw std::logic_error(
          "the drafter has begun another session since; give each session its own drafter");
    }
  }
  DrafterLease(const DrafterLease&) = delete;
  DrafterLease& operator=(const DrafterLease&) = delete;
  ~DrafterLease() { drafter_.in_use_.store(false); }

 private:
  Drafter& drafter_;
};

Session::Session(std::vector<TokenId> prompt, std::shared_ptr<Drafter> drafter,
                 SessionParams params, SessionLimits limits)
    : drafter_(std::move(drafter)),
      params_(std::move(params)),
      limits_(std::move(limits)),
      prompt_len_(static_cast<int>(prompt.size())),
      tokens_(std::move(prompt)),
      serial_(next_serial()) {
  check_limits(limits_);
  if (tokens_.empty())
    throw InvalidArgument("prompt=[] is not valid: allowed is at least 1 token.");
  if (prompt_len_ >= limits_.max_seq_len) {
    throw InvalidArgument::for_field(
        "prompt length", prompt_len_,
        "at most " + std::to_string(limits_.max_seq_len - 1) + " tokens (max_seq_len - 1)");
  }
  check_tokens("token of the prompt", tokens_, 0, limits_.vocab_size);
  if (params_.max_new_tokens < 0) {
    throw InvalidArgument::for_field("max_new_tokens", params_.max_new_tokens, "an integer >= 0");
  }
  const DrafterNeeds needs = drafter_->needs();
  auto& buckets = limits_.node_buckets;
  std::sort(buckets.begin(), buckets.end());
  if (needs.max_nodes < 0 || needs.top_k < 0 || needs.max_accepted < 0) {
    throw InvalidArgument::for_field("the drafter's needs",
                                     std::min({needs.max_nodes, needs.top_k, needs.max_accepted}),
                                     "max_nodes, top_k and max_accepted >= 0");
  }
  if (!(needs.top_p >= 0.0f && needs.top_p <= 1.0f)) {
    throw InvalidArgument("the drafter's needs: top_p=" + std::to_string(needs.top_p) +
                          " is not valid: allowed is a number from 0 to 1.");
  }
  successor_top_p_ = needs.top_p;
  if (needs.max_accepted > 0) max_accepted_ = static_cast<std::size_t>(needs.max_accepted);
  max_nodes_ = std::min(1 + std::min(needs.max_nodes, kMaxTreeNodes - 1), limits_.max_nodes);
  if (!buckets.empty()) max_nodes_ = std::min(max_nodes_, buckets.back());
  if (needs.top_k > limits_.top_k) {
    throw InvalidArgument::for_field("top_k of the output", limits_.top_k,
                                     "at least the drafter's " + std::to_string(needs.top_k));
  }
  stats_.accepted_histogram.assign(static_cast<std::size_t>(limits_.max_path) + 1, 0);
  if (params_.max_new_tokens == 0) {
    finish_reason_ = FinishReason::kLength;
    return;
  }
  reserve();
  const DrafterLease lease(*drafter_, serial_, /*begins=*/true);
  drafter_->begin(tokens_);
}

// So that no step asks for memory. Only of a long output the last part may still have to move.
void Session::reserve() {
  constexpr int kReserved = 1 << 16;  // tokens: a limit may be far beyond what will come
  const int room = std::min({params_.max_new_tokens, limits_.max_seq_len - prompt_len_, kReserved});
  tokens_.reserve(tokens_.size() + static_cast<std::size_t>(room));
  const auto longest = static_cast<std::size_t>(std::min(limits_.max_path, max_nodes_));
  path_.reserve(longest);
  commit_src_.reserve(longest);
  tree_.begin(tokens_.back(), max_nodes_, limits_.max_path, /*max_depth=*/0);
}

Span<const TokenId> Session::output_tokens() const {
  return {tokens_.data() + prompt_len_, tokens_.size() - static_cast<std::size_t>(prompt_len_)};
}

int Session::bucket_for(int n_nodes) const {
  const auto& buckets = limits_.node_buckets;
  const auto it = std::lower_bound(buckets.begin(), buckets.end(), n_nodes);
  return it == buckets.end() ? n_nodes : *it;
}

std::size_t Session::plan_bytes() const {
  return PlanLayout::of(bucket_for(max_nodes_), limits_.max_path).total;
}

void Session::observe_prompt(int first, Span<const TokenId> outputs) {
  const auto stride = static_cast<std::size_t>(1 + limits_.top_k);
  if (stats_.steps > 0 || planned_) throw std::logic_error("observe_prompt() after a plan()");
  const auto rows = outputs.size() / stride;
  if (first < 0 || outputs.size() % stride != 0 ||
      static_cast<std::size_t>(first) + rows >= static_cast<std::size_t>(prompt_len_)) {
    throw InvalidArgument::for_field(
        "len(outputs)", outputs.size(),
        "1 + top_k = " + std::to_string(stride) + " a row, of rows before the prompt's last token");
  }
  check_rows(outputs, stride, limits_.vocab_size);
  const DrafterLease lease(*drafter_, serial_, /*begins=*/false);
  drafter_->observe_prompt(first, outputs, static_cast<int>(stride));
}

int Session::plan(unsigned char* block, std::size_t block_size) {
  if (finished() || failed_) throw std::logic_error("plan() after the request ended");
  if (reinterpret_cast<std::uintptr_t>(block) % alignof(std::uint64_t) != 0) {
    throw InvalidArgument("block is not valid: allowed is memory aligned to 8 bytes.");
  }
  if (block_size < plan_bytes()) {
    throw InvalidArgument::for_field("block_size", block_size,
                                     "at least " + std::to_string(plan_bytes()) + " bytes");
  }
  const int prefix_len = kv_len();
  // The row at depth k holds the token at position prefix_len + k, which must fit the context.
  const int max_depth = limits_.max_seq_len - 1 - prefix_len;
  tree_.begin(tokens_.back(), max_nodes_, limits_.max_path, max_depth, limits_.vocab_size);
  {
    const DrafterLease lease(*drafter_, serial_, /*begins=*/false);
    drafter_->propose(tokens_, tree_);
  }
  bucket_ = bucket_for(tree_.size());
  pack_plan(tree_,
            {prefix_len, commit_src_, params_.temperature, params_.top_k, params_.top_p,
             params_.min_p, params_.seed, successor_top_p_},
            bucket_, limits_.max_path, block);
  planned_ = true;
  planned_at_ = std::chrono::steady_clock::now();
  return bucket_;
}

void Session::require_planned() const {
  if (!planned_) throw std::logic_error("commit() without a plan()");
}

void Session::check_output(Span<const TokenId> output) const {
  require_planned();
  const auto needed =
      static_cast<std::size_t>(tree_.size()) * static_cast<std::size_t>(1 + limits_.top_k);
  if (output.size() < needed) {
    throw InvalidArgument::for_field("len(output)", output.size(),
                                     "at least " + std::to_string(needed));
  }
  check_rows({output.data(), needed}, static_cast<std::size_t>(1 + limits_.top_k),
             limits_.vocab_size);
}

StepResult Session::commit(Span<const TokenId> output) {
  check_output(output);
  const int stride = 1 + limits_.top_k;
  verify_walk(tree_.tokens(), tree_.parents(), output, stride, tree_.n_verify(), path_);
  // A row's own next token is what its accepted child holds: the path may be cut anywhere.
  if (path_.size() > max_accepted_) path_.resize(max_accepted_);
  const NodeId last = path_.empty() ? 0 : path_.back();
  const TokenId last_token = output[static_cast<std::size_t>(last * stride)];
  return finish_step(output, [&] { return emit_path(last_token); });
}

StepResult Session::commit_lazily(Span<const TokenId> output, RowTokens& rows) {
  check_output(output);
  return finish_step(output, [&] { return emit_lazily(rows); });
}

StepResult Session::commit_recursive(Span<const TokenId> output, Span<const double> probs,
                                     int vocab) {
  check_output(output);
  const auto needed = static_cast<std::size_t>(tree_.n_verify()) * static_cast<std::size_t>(vocab);
  if (probs.size() < needed) {
    throw InvalidArgument::for_field("len(probs)", probs.size(),
                                     "at least n_verify * vocab = " + std::to_string(needed));
  }
  PositionUniforms uniforms(params_.seed, kv_len());
  TokenId last = verify_recursive(tree_.tokens(), tree_.parents(), probs, tree_.n_verify(), vocab,
                                  uniforms, path_);
  if (path_.size() > max_accepted_) {
    last = tree_.token(path_[max_accepted_]);
    path_.resize(max_accepted_);
  }
  // The distributions of a row without finite logits mean nothing: its token says so (-1).
  const auto finite = [&](NodeId row) {
    return output[static_cast<std::size_t>(row * (1 + limits_.top_k))] >= 0;
  };
  const bool valid = finite(0) && std::all_of(path_.begin(), path_.end(), finite);
  if (!valid) path_.clear();
  return finish_step(output, [&] { return emit_path(valid ? last : kNoToken); });
}

// The one gate of the output. When several rules end it at one token, a stop goes before a length.
bool Session::emit(TokenId token) {
  tokens_.push_back(token);
  const auto& ids = params_.stop_ids;
  // Asked about a stop id too: its text counts like any other.
  bool stops = params_.stop_check != nullptr && params_.stop_check->stops_at(token);
  stops = stops || std::find(ids.begin(), ids.end(), token) != ids.end();
  if (stops) {
    finish_reason_ = FinishReason::kStop;
  } else if (static_cast<int>(tokens_.size()) - prompt_len_ >= params_.max_new_tokens ||
             static_cast<int>(tokens_.size()) >= limits_.max_seq_len) {
    finish_reason_ = FinishReason::kLength;
  }
  return !finished();
}

// Emits the accepted path and the model's own token behind it, as far as the gate lets them;
// returns how many candidates came through.
int Session::emit_path(TokenId last_token) {
  const int root_row = kv_len();
  bool open = true;
  commit_src_.clear();
  for (const NodeId row : path_) {
    if (!open) break;
    open = emit(tree_.token(row));
    commit_src_.push_back(root_row + row);
  }
  const int accepted = static_cast<int>(commit_src_.size());
  if (!open) {
    // The output ends on an accepted token, whose KV row stays unread: kv_len counts it out.
    commit_src_.pop_back();
    return accepted;
  }
  if (last_token < 0) throw_not_finite();
  emit(last_token);
  return accepted;
}

// The same, in one walk: a row's next token is asked for once the tokens above it are out.
int Session::emit_lazily(RowTokens& rows) {
  const int root_row = kv_len();
  commit_src_.clear();
  path_.clear();
  NodeId row = 0;
  while (true) {
    const TokenId token = rows.next(row);
    if (token < 0) throw_not_finite();
    check_tokens("token of a row", {&token, 1}, 0, limits_.vocab_size);
    const bool open = emit(token);
    row = path_.size() == max_accepted_ ? kNoNode : child_of(row, token);
    if (row != kNoNode) path_.push_back(row);
    if (!open || row == kNoNode) break;
    commit_src_.push_back(root_row + row);
  }
  return static_cast<int>(path_.size());
}

NodeId Session::child_of(NodeId row, TokenId token) const {
  for (NodeId child = row + 1; child < tree_.n_verify(); ++child) {
    if (tree_.parent(child) == row && tree_.token(child) == token) return child;
  }
  return kNoNode;
}

void Session::throw_not_finite() const {
  throw NonFiniteLogits("step " + std::to_string(stats_.steps) +
                        ": the model's logits are not finite (NaN or infinity).");
}

template <typename Emit>
StepResult Session::finish_step(Span<const TokenId> output, const Emit& emit_step) {
  planned_ = false;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - planned_at_;
  const auto before = tokens_.size();
  int accepted = 0;
  Span<const TokenId> new_tokens;
  try {
    accepted = emit_step();
    path_.resize(static_cast<std::size_t>(accepted));
    new_tokens = {tokens_.data() + before, tokens_.size() - before};
    const DrafterLease lease(*drafter_, serial_, /*begins=*/false);
    drafter_->observe({&tree_, output, 1 + limits_.top_k, path_, new_tokens, seconds.count()});
  } catch (...) {
    failed_ = true;
    finish_reason_ = FinishReason::kNone;
    tokens_.resize(before);
    throw;
  }

  const auto emitted = static_cast<std::int64_t>(new_tokens.size());
  const bool hit = tree_.n_verify() > 1;
  ++stats_.steps;
  stats_.tokens += emitted;
  stats_.hit_steps += hit ? 1 : 0;
  stats_.hit_tokens += hit ? emitted : 0;
  stats_.candidate_nodes += tree_.n_verify() - 1;
  stats_.draft_nodes += tree_.size() - tree_.n_verify();
  stats_.accepted += accepted;
  ++stats_.accepted_histogram[static_cast<std::size_t>(accepted)];
  return {new_tokens, accepted};
}

}  // namespace ptd
