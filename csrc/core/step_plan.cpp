#include "ptd/step_plan.h"

#include <algorithm>
#include <cstring>

#include "ptd/rng.h"

namespace ptd {
namespace {

constexpr std::size_t kFieldAlignment = 64;

template <class T>
T* field(unsigned char* block, const PlanField& f) {
  return reinterpret_cast<T*>(block + f.offset);
}

}  // namespace

PlanLayout PlanLayout::of(int n_bucket, int max_path) {
  if (n_bucket < 1 || n_bucket > kMaxTreeNodes) {
    throw InvalidArgument::for_field("node_bucket", n_bucket, "an integer from 1 to 256");
  }
  if (max_path < 1) throw InvalidArgument::for_field("max_path", max_path, "an integer >= 1");
  const auto n = static_cast<std::size_t>(n_bucket);
  const auto p = static_cast<std::size_t>(max_path);
  PlanLayout layout{};
  std::size_t end = 0;
  const auto place = [&end](PlanField& f, std::size_t size) {
    f = {end, size};
    end = (end + size + kFieldAlignment - 1) / kFieldAlignment * kFieldAlignment;
  };
  place(layout.header, sizeof(PlanHeader));
  place(layout.sampling, 4 * sizeof(float));
  place(layout.token_ids, n * sizeof(std::int32_t));
  place(layout.positions, n * sizeof(std::int32_t));
  place(layout.commit_src, p * sizeof(std::int32_t));
  place(layout.temperature, n * sizeof(float));
  place(layout.uniform, n * sizeof(float));
  place(layout.mask, n * static_cast<std::size_t>(mask_words(n_bucket)) * sizeof(std::uint64_t));
  layout.total = end;
  return layout;
}

void TreeBuilder::begin(TokenId root, int max_nodes, int max_path, int max_depth, int vocab_size) {
  if (max_nodes < 1 || max_nodes > kMaxTreeNodes) {
    throw InvalidArgument::for_field("max_nodes", max_nodes, "an integer from 1 to 256");
  }
  max_nodes_ = max_nodes;
  vocab_size_ = vocab_size;
  max_depth_ = std::min(max_path, max_depth);
  const auto rows = static_cast<std::size_t>(max_nodes);
  tokens_.reserve(rows);
  parents_.reserve(rows);
  depths_.reserve(rows);
  masks_.reserve(rows);
  tokens_.assign(1, root);
  parents_.assign(1, kNoNode);
  depths_.assign(1, 0);
  masks_.assign(1, AncestorMask{});
  masks_[0].set(0);
  n_verify_ = 1;
}

NodeId TreeBuilder::add(NodeId parent, TokenId token) {
  if (parent < 0 || parent >= size()) {
    throw InvalidArgument::for_field("parent", parent,
                                     "a row of this step, 0 to " + std::to_string(size() - 1));
  }
  if (token < 0 || (vocab_size_ > 0 && token >= vocab_size_)) {
    throw InvalidArgument::for_field("token", token,
                                     vocab_size_ > 0
                                         ? "a token id from 0 to " + std::to_string(vocab_size_ - 1)
                                         : "a token id >= 0");
  }
  const auto p = static_cast<std::size_t>(parent);
  if (size() == max_nodes_ || depths_[p] >= max_depth_) return kNoNode;
  const NodeId row = size();
  const int depth = depths_[p] + 1;
  AncestorMask mask = masks_[p];
  mask.set(row);
  tokens_.push_back(token);
  parents_.push_back(parent);
  depths_.push_back(depth);
  masks_.push_back(mask);
  return row;
}

NodeId TreeBuilder::add_candidate(NodeId parent, TokenId token) {
  if (n_verify_ != size()) {
    throw InvalidArgument("add_candidate came after add_draft: add all candidates first.");
  }
  const NodeId row = add(parent, token);
  if (row != kNoNode) ++n_verify_;
  return row;
}

NodeId TreeBuilder::add_draft(NodeId parent, TokenId token) {
  if (parent > 0 && parent < n_verify_) {
    throw InvalidArgument::for_field("parent", parent,
                                     "the root (0) or a draft row: a draft never hangs below a "
                                     "candidate");
  }
  return add(parent, token);
}

void pack_plan(const TreeBuilder& tree, const StepState& state, int n_bucket, int max_path,
               unsigned char* block) {
  const PlanLayout layout = PlanLayout::of(n_bucket, max_path);
  const int n = tree.size();
  if (n > n_bucket || state.commit_src.size() > static_cast<std::size_t>(max_path)) {
    throw InvalidArgument::for_field("node_bucket", n_bucket,
                                     "at least the tree's " + std::to_string(n) + " rows");
  }
  const bool samples = state.temperature > 0.0f;
  const bool filters = samples && (state.top_k > 0 || state.top_p < 1.0f || state.min_p > 0.0f);

  auto* commit_src = field<std::int32_t>(block, layout.commit_src);
  const int n_commit = static_cast<int>(state.commit_src.size());
  const int first_dst = state.prefix_len - n_commit;
  bool moves = false;
  for (int i = 0; i < max_path; ++i) {
    commit_src[i] = i < n_commit ? state.commit_src[static_cast<std::size_t>(i)] : first_dst + i;
    moves = moves || commit_src[i] != first_dst + i;
  }

  auto* header = field<PlanHeader>(block, layout.header);
  *header = PlanHeader{
      n,
      tree.n_verify(),
      state.prefix_len,
      n_commit,
      (moves ? kPlanMovesRows : 0) | (samples ? kPlanSamples : 0) | (filters ? kPlanFilters : 0),
      {0, 0, 0}};
  auto* sampling = field<float>(block, layout.sampling);
  sampling[0] = static_cast<float>(state.top_k);
  sampling[1] = state.top_p;
  sampling[2] = state.min_p;
  sampling[3] = state.successor_top_p;

  auto* token_ids = field<std::int32_t>(block, layout.token_ids);
  auto* positions = field<std::int32_t>(block, layout.positions);
  auto* temperature = field<float>(block, layout.temperature);
  auto* uniform = field<float>(block, layout.uniform);
  auto* mask = field<std::uint64_t>(block, layout.mask);
  const auto words = static_cast<std::size_t>(mask_words(n_bucket));
  for (int i = 0; i < n_bucket; ++i) {
    const bool padding = i >= n;
    const int row = padding ? 0 : i;
    token_ids[i] = tree.token(row);
    positions[i] = state.prefix_len + tree.depth(row);
    const bool row_samples = samples && i < tree.n_verify();
    temperature[i] = row_samples ? state.temperature : 0.0f;
    uniform[i] =
        row_samples ? philox_uniform(state.seed, static_cast<std::uint64_t>(positions[i])) : 0.0f;
    AncestorMask own{};
    if (padding) own.set(i);
    const AncestorMask& visible = padding ? own : tree.mask(i);
    std::memcpy(mask + static_cast<std::size_t>(i) * words, visible.words.data(),
                words * sizeof(std::uint64_t));
  }
}

}  // namespace ptd
