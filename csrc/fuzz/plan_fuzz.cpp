// The plan builder: any calls of TreeBuilder, then pack_plan into a block of exactly the promised
// size. Whatever was asked for, the rows that stand obey the rules, and the block says what they
// are: compared with a plain list of parents, not with the builder's own masks.
#include <cstring>
#include <vector>

#include "input.h"
#include "ptd/rng.h"
#include "ptd/step_plan.h"

namespace {

using ptd::kNoNode;
using ptd::NodeId;
using ptd::TokenId;

struct Row {
  NodeId parent;
  TokenId token;
  int depth;
  bool draft;
};

template <class T>
const T* field(const std::vector<std::uint64_t>& block, const ptd::PlanField& f) {
  EXPECT(f.offset + f.size <= block.size() * sizeof(std::uint64_t));
  return reinterpret_cast<const T*>(reinterpret_cast<const unsigned char*>(block.data()) +
                                    f.offset);
}

bool sees(const std::vector<Row>& rows, int row, int other) {
  for (NodeId at = row; at != kNoNode; at = rows[static_cast<std::size_t>(at)].parent) {
    if (at == other) return true;
  }
  return false;
}

void check_block(const std::vector<Row>& rows, int n_verify, const ptd::StepState& state,
                 int bucket, int max_path, const std::vector<std::uint64_t>& block) {
  const auto layout = ptd::PlanLayout::of(bucket, max_path);
  const auto* header = field<ptd::PlanHeader>(block, layout.header);
  const int n = static_cast<int>(rows.size());
  EXPECT(header->n_nodes == n && header->n_verify == n_verify);
  EXPECT(header->prefix_len == state.prefix_len);
  EXPECT(header->n_commit == static_cast<int>(state.commit_src.size()));
  const auto* tokens = field<std::int32_t>(block, layout.token_ids);
  const auto* positions = field<std::int32_t>(block, layout.positions);
  const auto* temperature = field<float>(block, layout.temperature);
  const auto* uniform = field<float>(block, layout.uniform);
  const auto* mask = field<std::uint64_t>(block, layout.mask);
  const int words = ptd::mask_words(bucket);
  for (int i = 0; i < bucket; ++i) {
    const Row& row = rows[static_cast<std::size_t>(i < n ? i : 0)];
    EXPECT(tokens[i] == row.token && positions[i] == state.prefix_len + row.depth);
    const bool samples = i < n_verify && state.temperature > 0.0f;
    EXPECT(temperature[i] == (samples ? state.temperature : 0.0f));
    EXPECT(uniform[i] >= 0.0f && uniform[i] < 1.0f);
    for (int j = 0; j < words * 64; ++j) {
      const bool seen = (mask[i * words + j / 64] >> (j % 64)) & 1u;
      EXPECT(seen == (i < n ? j < n && sees(rows, i, j) : j == i));
    }
  }
  const auto* commit = field<std::int32_t>(block, layout.commit_src);
  const auto n_commit = static_cast<int>(state.commit_src.size());
  for (int i = 0; i < max_path; ++i) {
    const bool given = i < n_commit;
    EXPECT(commit[i] == (given ? state.commit_src[static_cast<std::size_t>(i)]
                               : state.prefix_len - n_commit + i));
  }
}

void build_and_pack(ptd_fuzz::Input& input) {
  const int max_nodes = input.wild(1, ptd::kMaxTreeNodes);
  const int max_path = input.between(1, 64);
  const int max_depth = input.between(0, 70);
  const int vocab = input.one_in(2) ? 0 : input.between(1, 300);
  const TokenId root = input.between(0, 255);
  ptd::TreeBuilder tree;
  tree.begin(root, max_nodes, max_path, max_depth, vocab);
  EXPECT(max_nodes >= 1 && max_nodes <= ptd::kMaxTreeNodes);
  std::vector<Row> rows = {{kNoNode, root, 0, false}};
  int n_verify = 1;
  while (!input.empty() && rows.size() < 400) {
    const bool draft = input.one_in(2);
    const NodeId parent =
        input.one_in(8) ? input.wild(-2, 300) : input.between(0, static_cast<int>(rows.size()) - 1);
    const TokenId token = input.one_in(8) ? input.wild(-2, 400) : input.byte();
    const int before = tree.size();
    try {
      const NodeId row = draft ? tree.add_draft(parent, token) : tree.add_candidate(parent, token);
      const Row& above = rows.at(static_cast<std::size_t>(parent));
      if (row == kNoNode) {
        EXPECT(before == max_nodes || above.depth >= max_depth || above.depth >= max_path);
        continue;
      }
      EXPECT(row == before && row < max_nodes && token >= 0 && (vocab == 0 || token < vocab));
      EXPECT(draft ? parent == 0 || above.draft : n_verify == row);
      rows.push_back({parent, token, above.depth + 1, draft});
      EXPECT(rows.back().depth <= max_depth && rows.back().depth <= max_path);
      if (!draft) ++n_verify;
    } catch (const ptd::InvalidArgument&) {
      EXPECT(tree.size() == before);
    }
  }
  EXPECT(tree.size() == static_cast<int>(rows.size()) && tree.n_verify() == n_verify);

  ptd::StepState state{};
  state.prefix_len = input.between(0, 100000);
  std::vector<std::int32_t> commit;
  for (int n = input.between(0, max_path + 1); n > 0; --n) commit.push_back(input.between(0, 999));
  state.commit_src = commit;
  state.temperature = input.one_in(2) ? 0.0f : 0.7f;
  state.top_k = input.between(0, 5);
  state.top_p = 0.5f;
  state.seed = input.word();
  const int bucket = input.one_in(4) ? input.wild(-1, 300) : tree.size() + input.between(0, 40);
  const auto layout = ptd::PlanLayout::of(bucket, max_path);
  std::vector<std::uint64_t> block(layout.total / sizeof(std::uint64_t), ~0ull);
  ptd::pack_plan(tree, state, bucket, max_path, reinterpret_cast<unsigned char*>(block.data()));
  EXPECT(bucket >= tree.size() && commit.size() <= static_cast<std::size_t>(max_path));
  check_block(rows, n_verify, state, bucket, max_path, block);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ptd_fuzz::Input input(data, size);
  try {
    build_and_pack(input);
  } catch (const ptd::InvalidArgument&) {  // refused, and nothing happened
  }
  return 0;
}
