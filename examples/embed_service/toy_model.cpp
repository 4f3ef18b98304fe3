#include "toy_model.h"

#include <algorithm>

#include "ptd/bitmask.h"
#include "ptd/step_plan.h"

namespace embed_service {
namespace {

// A text that repeats itself in part, so that drafts have something to find.
std::int32_t next_token(std::int32_t before, std::int32_t last) {
  const auto mixed = static_cast<std::uint32_t>(before * 31 + last * 17 + 7);
  return static_cast<std::int32_t>(mixed % 5 == 0 ? mixed % 97 : (mixed >> 2) % 13);
}

}  // namespace

ToyModel::ToyModel(int max_seq_len, int max_nodes, int max_path)
    : block_((ptd::PlanLayout::of(max_nodes, max_path).total + 7) / 8),
      cache_(static_cast<std::size_t>(max_seq_len + max_nodes)),
      output_(static_cast<std::size_t>(max_nodes)),
      max_path_(max_path) {}

void ToyModel::prefill(const std::vector<std::int32_t>& prompt) {
  std::copy(prompt.begin(), prompt.end() - 1, cache_.begin());
}

ptd::Span<const std::int32_t> ToyModel::forward(int bucket) {
  const auto layout = ptd::PlanLayout::of(bucket, max_path_);
  const unsigned char* block = this->block();
  const auto& plan = *reinterpret_cast<const ptd::PlanHeader*>(block + layout.header.offset);
  const auto* tokens = reinterpret_cast<const std::int32_t*>(block + layout.token_ids.offset);
  const auto* moves = reinterpret_cast<const std::int32_t*>(block + layout.commit_src.offset);
  const auto* mask = reinterpret_cast<const std::uint64_t*>(block + layout.mask.offset);
  const int words = ptd::mask_words(bucket);

  // The last step's accepted rows join the prefix.
  for (int i = 0; i < plan.n_commit; ++i) {
    cache_[static_cast<std::size_t>(plan.prefix_len - plan.n_commit + i)] =
        cache_[static_cast<std::size_t>(moves[i])];
  }
  for (int row = 0; row < plan.n_nodes; ++row) {
    cache_[static_cast<std::size_t>(plan.prefix_len + row)] = tokens[row];
    // "Attention": of the rows that this one sees, the last two. The prefix is always visible.
    std::int32_t before =
        plan.prefix_len > 0 ? cache_[static_cast<std::size_t>(plan.prefix_len - 1)] : tokens[0];
    for (int j = 0; j < row; ++j) {
      const std::uint64_t word = mask[row * words + j / 64];
      if ((word >> (j % 64) & 1) != 0) before = tokens[j];
    }
    output_[static_cast<std::size_t>(row)] = next_token(before, tokens[row]);
  }
  return {output_.data(), static_cast<std::size_t>(plan.n_nodes)};
}

}  // namespace embed_service
