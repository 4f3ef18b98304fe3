#include "ptd/step_plan.h"

#include <climits>
#include <cstring>
#include <vector>

#include "check.h"
#include "ptd/rng.h"

namespace {

using ptd::kNoNode;
using ptd::PlanHeader;
using ptd::PlanLayout;
using ptd::TreeBuilder;

constexpr int kMaxPath = 8;

std::vector<std::uint64_t> pack(const TreeBuilder& tree, const ptd::StepState& state, int bucket) {
  // Exactly the promised size, so that a sanitizer sees any byte written beyond it.
  std::vector<std::uint64_t> block(PlanLayout::of(bucket, kMaxPath).total / sizeof(std::uint64_t));
  ptd::pack_plan(tree, state, bucket, kMaxPath, reinterpret_cast<unsigned char*>(block.data()));
  return block;
}

template <class T>
const T* field(const std::vector<std::uint64_t>& block, const ptd::PlanField& f) {
  return reinterpret_cast<const T*>(reinterpret_cast<const unsigned char*>(block.data()) +
                                    f.offset);
}

void masks_hold_ancestors_at_every_word() {
  TreeBuilder tree;
  tree.begin(7, ptd::kMaxTreeNodes, 255, INT_MAX);
  for (int i = 1; i < ptd::kMaxTreeNodes; ++i) {
    CHECK(tree.add_candidate(i / 2, i) == i);  // a heap: parent of i is i / 2
  }
  CHECK(tree.add_candidate(0, 1) == kNoNode);
  CHECK(tree.add_draft(0, 1) == kNoNode);
  const auto block = pack(tree, {100, {}, 0.0f, 0, 1.0f, 0.0f, 0}, ptd::kMaxTreeNodes);
  const auto layout = PlanLayout::of(ptd::kMaxTreeNodes, kMaxPath);
  const auto* mask = field<std::uint64_t>(block, layout.mask);
  for (int i = 0; i < ptd::kMaxTreeNodes; ++i) {
    std::vector<bool> visible(ptd::kMaxTreeNodes, false);
    for (int at = i; at > 0; at /= 2) visible[static_cast<std::size_t>(at)] = true;
    visible[0] = true;
    for (int j = 0; j < ptd::kMaxTreeNodes; ++j) {
      CHECK(((mask[i * 4 + j / 64] >> (j % 64)) & 1u) ==
            (visible[static_cast<std::size_t>(j)] ? 1u : 0u));
    }
  }
}

void padding_repeats_the_root_and_sees_itself() {
  TreeBuilder tree;
  tree.begin(7, 8, kMaxPath, INT_MAX);
  tree.add_candidate(0, 5);
  tree.add_draft(0, 6);
  const std::vector<std::int32_t> moved = {12, 15};
  const auto block = pack(tree, {12, moved, 0.5f, 3, 0.9f, 0.1f, 42}, 8);
  const auto layout = PlanLayout::of(8, kMaxPath);
  const auto* header = field<PlanHeader>(block, layout.header);
  CHECK(header->n_nodes == 3 && header->n_verify == 2 && header->prefix_len == 12);
  CHECK(header->n_commit == 2);
  CHECK(header->flags == (ptd::kPlanMovesRows | ptd::kPlanSamples | ptd::kPlanFilters));
  const auto* tokens = field<std::int32_t>(block, layout.token_ids);
  const auto* positions = field<std::int32_t>(block, layout.positions);
  const auto* mask = field<std::uint64_t>(block, layout.mask);
  const auto* temperature = field<float>(block, layout.temperature);
  const auto* uniform = field<float>(block, layout.uniform);
  const auto* commit_src = field<std::int32_t>(block, layout.commit_src);
  for (int i = 3; i < 8; ++i) {
    CHECK(tokens[i] == 7 && positions[i] == 12 && mask[i] == (1ull << i) && temperature[i] == 0.0f);
  }
  CHECK(temperature[0] == 0.5f && temperature[1] == 0.5f && temperature[2] == 0.0f);
  CHECK(uniform[0] == ptd::philox_uniform(42, 12) && uniform[1] == ptd::philox_uniform(42, 13));
  CHECK(commit_src[0] == 12 && commit_src[1] == 15);
  for (int i = 2; i < kMaxPath; ++i) CHECK(commit_src[i] == 10 + i);
}

void limits_refuse_rows() {
  TreeBuilder tree;
  tree.begin(7, 8, kMaxPath, 1);  // only one more position fits the context
  const auto child = tree.add_candidate(0, 5);
  CHECK(child == 1 && tree.add_candidate(child, 6) == kNoNode);
  CHECK(tree.add_draft(0, 9) == 2);
  CHECK_THROWS(tree.add_candidate(0, 5), ptd::InvalidArgument);  // drafts have begun
  CHECK_THROWS(tree.add_draft(child, 5), ptd::InvalidArgument);  // below a candidate
  CHECK_THROWS(tree.add_draft(99, 5), ptd::InvalidArgument);
  CHECK_THROWS(tree.add_draft(0, -3), ptd::InvalidArgument);
  CHECK_THROWS(PlanLayout::of(0, 4), ptd::InvalidArgument);
  CHECK_THROWS(PlanLayout::of(257, 4), ptd::InvalidArgument);
}

}  // namespace

int main() {
  masks_hold_ancestors_at_every_word();
  padding_repeats_the_root_and_sees_itself();
  limits_refuse_rows();
}
