// What a node sees and in which order, and the records that chunks of keys are joined by.
//
// The keys of a node at position p are those at positions 0..p: the committed rows of the cache,
// then its ancestors and itself. Whatever is accumulated over keys goes by position, so a token
// gets the same bits as a node of a tree, as a row of a prompt and alone.
#pragma once

#include "attention_layout.h"
#include "attention_vectors.h"
#include "simd.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

struct AttentionStep {
  const AttentionArgs& args;
  AttentionLayout at;
  int prefix;
  const std::int32_t* own_keys;
  const std::uint16_t* ancestors;

  explicit AttentionStep(const AttentionArgs& a)
      : args(a),
        at(attention_layout(a)),
        prefix(*a.prefix_len),
        own_keys(reinterpret_cast<const std::int32_t*>(a.scratch + at.own_keys)),
        ancestors(reinterpret_cast<const std::uint16_t*>(a.scratch + at.ancestors)) {}

  bool tree() const { return args.mask != nullptr; }
  int keys_of(int node) const { return prefix + (tree() ? own_keys[node] : node + 1); }
  // Keys at positions below it lie in the cache row of their position, whichever node looks.
  int common_keys() const { return tree() ? prefix : prefix + args.rows; }
  const std::uint16_t* ancestors_of(int node) const {
    return ancestors + static_cast<std::int64_t>(node) * args.rows;
  }
  // The most keys that one of the nodes sees.
  int most_keys(int first, int end) const {
    if (!tree()) return prefix + end;
    int most = 0;
    for (int node = first; node < end; ++node) most = max_of(most, own_keys[node]);
    return prefix + most;
  }
  template <typename T>
  const T* query(int node, int head) const {
    return static_cast<const T*>(args.q) +
           (static_cast<std::int64_t>(node) * args.q_heads + head) * args.head_dim;
  }
  template <typename T>
  T* out(int node, int head) const {
    return static_cast<T*>(args.out) +
           (static_cast<std::int64_t>(node) * args.q_heads + head) * args.head_dim;
  }
};

// Writes own_keys and ancestors of the nodes of this share.
inline void list_ancestors(const AttentionArgs& args, Share share) {
  const AttentionLayout at = attention_layout(args);
  auto* own_keys = reinterpret_cast<std::int32_t*>(args.scratch + at.own_keys);
  auto* ancestors = reinterpret_cast<std::uint16_t*>(args.scratch + at.ancestors);
  const std::int64_t words = (args.rows + 63) / 64;
  const Range nodes = share_of(args.rows, share.index, share.count);
  for (std::int64_t node = nodes.begin; node < nodes.end; ++node) {
    std::uint16_t* list = ancestors + node * args.rows;
    int count = 0;
    for (std::int64_t word = 0; word < words; ++word) {
      for (std::uint64_t bits = args.mask[node * words + word]; bits != 0; bits &= bits - 1) {
        list[count++] = static_cast<std::uint16_t>(word * 64 + __builtin_ctzll(bits));
      }
    }
    own_keys[node] = count;
  }
}

// Turns n scores (1..kChunkKeys) into weights exp(score * scale - largest). `keep(i, weights)`
// stores those at positions i..i+15, zeros beyond n, and returns them as they will be used. Lane l
// of the sum takes the positions that leave l modulo 16.
template <typename Keep>
inline void weigh_scores(float* scores, int n, float scale, float& largest, float& sum,
                         const Keep& keep) {
  const F32x16 factor = splat16(scale), lowest = splat16(-__builtin_inff());
  const int whole = n / 16 * 16;
  F32x16 most = lowest;
  for (int i = 0; i < whole; i += 16) {
    const F32x16 scaled = mul(load16(scores + i), factor);
    store16(scores + i, scaled);
    most = max16(most, scaled);
  }
  if (whole < n) {
    const std::uint32_t beyond = 0xffffu << (n - whole) & 0xffffu;
    const F32x16 scaled = blend(beyond, mul(load16(scores + whole), factor), lowest);
    store16(scores + whole, scaled);
    most = max16(most, scaled);
  }
  largest = fold_max16(most);
  const F32x16 reference = splat16(largest);
  F32x16 total = zero16();
  for (int i = 0; i < n; i += 16) {
    total = add(total, keep(i, exp16(sub(load16(scores + i), reference))));
  }
  sum = fold_sum16(total);
}

// state += next, two records of consecutive chunks (or runs of them).
inline void join_records(float* state, const float* next, int dim) {
  const float most = state[dim] < next[dim] ? next[dim] : state[dim];
  const F32x16 each = blend(1u, splat16(next[dim]), splat16(state[dim]));
  float factors[16];
  store16(factors, exp16(sub(each, splat16(most))));
  const F32x16 keep = splat16(factors[0]), take = splat16(factors[1]);
  for (int d = 0; d < dim; d += 16) {
    store16(state + d, fma(load16(next + d), take, mul(load16(state + d), keep)));
  }
  state[dim] = most;
  state[dim + 1] = state[dim + 1] * factors[0] + next[dim + 1] * factors[1];
}

template <typename T>
inline void write_row(const float* state, int dim, T* out) {
  const F32x16 inverse = splat16(1.0f / state[dim + 1]);
  for (int d = 0; d < dim; d += 16) store16(out + d, mul(load16(state + d), inverse));
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
