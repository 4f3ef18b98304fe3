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

// The largest of n scores (1..kChunkKeys), each times `scale`.
inline float largest_score(const float* scores, int n, float scale) {
  const F32x16 factor = splat16(scale), lowest = splat16(-__builtin_inff());
  const int whole = n / 16 * 16;
  F32x16 most = lowest;
  for (int i = 0; i < whole; i += 16) most = max16(most, mul(load16(scores + i), factor));
  if (whole < n) {
    const F32x16 scaled = mul(load16(scores + whole), factor);
    most = max16(most, blend(0xffffu << (n - whole) & 0xffffu, scaled, lowest));
  }
  return fold_max16(most);
}

// One chunk of the keys of a key/value head. Paths work on it; what they have in common is here.
struct Chunk {
  const AttentionStep& step;
  int head = 0;
  int base = 0;      // position of its first key
  int common = 0;    // its keys below common_keys(), as far as they are needed
  bool own = false;  // whether a node finds keys in other rows: those of its ancestors

  // The chunk as the nodes [first, end) need it.
  void select(int head_index, int index, int first, int end) {
    head = head_index;
    base = index * kChunkKeys;
    const int seen = step.most_keys(first, end);
    common = max_of(0, min_of(min_of(step.common_keys(), seen) - base, kChunkKeys));
    own = step.tree() && common < kChunkKeys && base < seen;
  }
  template <typename T>
  const T* rows_of(const void* cache) const {
    return static_cast<const T*>(cache) + head * step.args.kv_head_stride;
  }
  // Keys of the chunk that a node sees, and the most that one of several sees; may be negative.
  int visible(int node) const { return min_of(step.keys_of(node) - base, kChunkKeys); }
  int most_visible(int first, int end) const {
    return min_of(step.most_keys(first, end) - base, kChunkKeys);
  }
  // Puts the scores of nodes [first, end) with their ancestors where the positions of those are.
  void pick_ancestors(int first, int end, const float* step_scores, int step_stride,
                      float* scores) const {
    const int group = step.at.group, skipped = step.prefix - base;
    for (int node = first; node < end; ++node) {
      const std::uint16_t* list = step.ancestors_of(node);
      const int n = visible(node);
      for (int g = 0; g < group; ++g, scores += kScoreStride, step_scores += step_stride) {
        for (int k = max_of(skipped, 0); k < n; ++k) scores[k] = step_scores[list[k - skipped]];
      }
    }
  }
  // Writes the largest score of the heads of nodes [first, end) into their records.
  void find_largest(int first, int end, const float* scores, float* records) const {
    const int group = step.at.group, heads = (end - first) * group;
    for (int h = 0; h < heads; ++h, scores += kScoreStride, records += step.at.record) {
      const int n = visible(first + h / group);
      if (n > 0) records[step.args.head_dim] = largest_score(scores, n, step.args.scale);
    }
  }
};

// states[h] += next[h] for `heads` records, where next is of the chunk that begins at position
// `begin` and head h belongs to node first + h / group. Heads that see nothing of it stay.
inline void join_records(const AttentionStep& step, int first, int heads, int begin, float* states,
                         const float* next) {
  const int dim = step.args.head_dim, group = step.at.group;
  const std::int64_t record = step.at.record;
  for (int h0 = 0; h0 < heads; h0 += 16) {
    const int count = min_of(heads - h0, 16);
    float held[16] = {}, added[16] = {};
    for (int i = 0; i < count; ++i) {
      held[i] = states[(h0 + i) * record + dim];
      added[i] = next[(h0 + i) * record + dim];
    }
    const F32x16 a = load16(held), b = load16(added), most = blend(less_mask(a, b), a, b);
    store16(held, exp16(sub(a, most)));
    store16(added, exp16(sub(b, most)));
    float larger[16];
    store16(larger, most);
    for (int i = 0; i < count; ++i) {
      if (step.keys_of(first + (h0 + i) / group) <= begin) continue;
      float* to = states + (h0 + i) * record;
      const float* from = next + (h0 + i) * record;
      const F32x16 keep = splat16(held[i]), take = splat16(added[i]);
      for (int d = 0; d < dim; d += 16) {
        store16(to + d, fma(load16(from + d), take, mul(load16(to + d), keep)));
      }
      to[dim] = larger[i];
      to[dim + 1] = to[dim + 1] * held[i] + from[dim + 1] * added[i];
    }
  }
}

template <typename T>
inline void write_row(const float* state, int dim, T* out) {
  const F32x16 inverse = splat16(1.0f / state[dim + 1]);
  for (int d = 0; d < dim; d += 16) store16(out + d, mul(load16(state + d), inverse));
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
