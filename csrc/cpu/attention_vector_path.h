// Attention of a tile by vectors, in fp32.
//
// Scores: lanes are keys, and every score is one chain of multiply-adds over the head's dimensions
// in ascending order. Values: lanes are dimensions, and every output is one chain over the chunk's
// positions in ascending order. Both are cut in pieces that keep the accumulators in registers.
#pragma once

#include "attention_rows.h"
#include "attention_vectors.h"
#include "simd.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

#if PTD_ISA_LEVEL == 1  // sixteen registers, of which an F32x16 takes two
inline constexpr int kPieceHeads = 3, kPieceKeys = 1, kPieceVectors = 2;
#else
inline constexpr int kPieceHeads = 4, kPieceKeys = 4, kPieceVectors = 4;
#endif

// Scores of kHeads queries [dim] with kKeys blocks of sixteen keys [dim][16].
template <int kHeads, int kKeys>
inline void score_piece(const float* queries, const float* keys, int dim, float* scores,
                        int score_stride) {
  F32x16 sums[kHeads][kKeys];
  for (auto& head : sums) {
    for (F32x16& sum : head) sum = zero16();
  }
  for (int d = 0; d < dim; ++d) {
    F32x16 key[kKeys];
    for (int b = 0; b < kKeys; ++b) key[b] = load16(keys + (b * dim + d) * 16);
    for (int h = 0; h < kHeads; ++h) {
      const F32x16 q = splat16(queries[h * dim + d]);
      for (int b = 0; b < kKeys; ++b) sums[h][b] = fma(q, key[b], sums[h][b]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int b = 0; b < kKeys; ++b) store16(scores + h * score_stride + b * 16, sums[h][b]);
  }
}

template <int kHeads>
inline void score_heads(const float* queries, const float* keys, int blocks, int dim, float* scores,
                        int score_stride) {
  int b = 0;
  for (; b + kPieceKeys <= blocks; b += kPieceKeys) {
    score_piece<kHeads, kPieceKeys>(queries, keys + b * 16 * dim, dim, scores + b * 16,
                                    score_stride);
  }
  for (; b < blocks; ++b) {
    score_piece<kHeads, 1>(queries, keys + b * 16 * dim, dim, scores + b * 16, score_stride);
  }
}

// Adds weight * value at positions [begin, end) to kHeads sums, kVectors * 16 dimensions wide.
// rows[k] are the values of position k.
template <int kHeads, int kVectors, typename T>
inline void value_piece(const float* weights, int begin, int end, const T* const* rows, int column,
                        float* sums, std::int64_t sum_stride) {
  F32x16 held[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) held[h][v] = load16(sums + h * sum_stride + column + v * 16);
  }
  for (int k = begin; k < end; ++k) {
    const T* values = rows[k] + column;
    F32x16 value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = load16(values + v * 16);
    for (int h = 0; h < kHeads; ++h) {
      const F32x16 weight = splat16(weights[h * kScoreStride + k]);
      for (int v = 0; v < kVectors; ++v) held[h][v] = fma(weight, value[v], held[h][v]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) store16(sums + h * sum_stride + column + v * 16, held[h][v]);
  }
}

template <int kHeads, typename T>
inline void value_heads(const float* weights, int begin, int end, const T* const* rows, int dim,
                        float* sums, std::int64_t sum_stride) {
  int column = 0;
  for (; column + kPieceVectors * 16 <= dim; column += kPieceVectors * 16) {
    value_piece<kHeads, kPieceVectors>(weights, begin, end, rows, column, sums, sum_stride);
  }
  for (; column < dim; column += 16) {
    value_piece<kHeads, 1>(weights, begin, end, rows, column, sums, sum_stride);
  }
}

// Calls piece(head, constant number of heads) for all of `heads`, in pieces of up to kPieceHeads.
template <int kHeads>
struct HeadCount {
  static constexpr int value = kHeads;
};
template <typename Piece>
inline void for_pieces(int heads, const Piece& piece) {
  int h = 0;
  for (; h + kPieceHeads <= heads; h += kPieceHeads) piece(h, HeadCount<kPieceHeads>());
  if constexpr (kPieceHeads > 3) {
    if (heads - h == 3) piece(h, HeadCount<3>());
  }
  if (heads - h == 2) piece(h, HeadCount<2>());
  if (heads - h == 1) piece(h, HeadCount<1>());
}

template <typename T>
class VectorAttention {
 public:
  static constexpr int kTiles = 1;  // that attend() takes at once

  VectorAttention(const AttentionStep& step, unsigned char* memory)
      : step_(step),
        dim_(step.args.head_dim),
        chunk_{step},
        keys_(reinterpret_cast<float*>(memory + step.at.keys)),
        step_keys_(reinterpret_cast<float*>(memory + step.at.step_keys)),
        queries_(reinterpret_cast<float*>(memory + step.at.queries)),
        scores_(reinterpret_cast<float*>(memory + step.at.scores)),
        step_scores_(reinterpret_cast<float*>(memory + step.at.step_scores)),
        staging_(reinterpret_cast<T*>(memory + step.at.staging)) {}

  // Packs the keys of a chunk, as far as the nodes [first, end) see them.
  void load(int head, int chunk, int first, int end) {
    chunk_.select(head, chunk, first, end);
    const T* keys = chunk_.template rows_of<T>(step_.args.k_cache);
    pack(keys + static_cast<std::int64_t>(chunk_.base) * dim_, chunk_.common, keys_);
    if (chunk_.own) pack(keys + static_cast<std::int64_t>(step_.prefix) * dim_, end, step_keys_);
  }

  // The records of the heads of nodes [first, end), all within those of load(). Heads that see
  // nothing of the chunk get none.
  void attend(int first, int end, float* records) {
    const int group = step_.at.group, heads = (end - first) * group;
    const int seen = chunk_.most_visible(first, end);
    if (seen <= 0) return;
    for (int h = 0; h < heads; ++h) {
      const T* query = step_.query<T>(first + h / group, chunk_.head * group + h % group);
      for (int d = 0; d < dim_; d += 16) store16(queries_ + h * dim_ + d, load16(query + d));
    }
    score(heads, keys_, min_of(chunk_.common, seen), scores_, kScoreStride);
    if (chunk_.own) {
      const int step_stride = (end + 15) / 16 * 16;
      score(heads, step_keys_, end, step_scores_, step_stride);
      chunk_.pick_ancestors(first, end, step_scores_, step_stride, scores_);
    }
    chunk_.find_largest(first, end, scores_, records);
    for (int h = 0; h < heads; ++h) {
      const int n = chunk_.visible(first + h / group);
      float* record = records + h * step_.at.record;
      if (n > 0) record[dim_ + 1] = weigh(scores_ + h * kScoreStride, n, record[dim_]);
      for (int d = 0; d < dim_; d += 16) store16(record + d, zero16());
    }
    weigh_values(first, end, records);
  }

 private:
  // n rows of the cache in blocks of sixteen, the last one filled up with zeros.
  void pack(const T* rows, int n, float* out) {
    const std::int64_t block = static_cast<std::int64_t>(16) * dim_;
    int k = 0;
    for (; k + 16 <= n; k += 16, out += block) {
      turn_keys(rows + static_cast<std::int64_t>(k) * dim_, dim_, out);
    }
    if (k == n) return;
    const std::int64_t left = static_cast<std::int64_t>(n - k) * dim_;
    std::memcpy(staging_, rows + static_cast<std::int64_t>(k) * dim_, left * sizeof(T));
    std::memset(staging_ + left, 0, (block - left) * sizeof(T));
    turn_keys(staging_, dim_, out);
  }

  void score(int heads, const float* keys, int n, float* scores, int stride) const {
    for_pieces(heads, [&](int h, auto count) {
      score_heads<decltype(count)::value>(queries_ + h * dim_, keys, (n + 15) / 16, dim_,
                                          scores + h * stride, stride);
    });
  }

  // Turns n scores into weights exp(score * scale - largest); returns their sum. Lane l of it takes
  // the positions that leave l modulo 16.
  float weigh(float* scores, int n, float largest) const {
    const F32x16 factor = splat16(step_.args.scale), reference = splat16(largest);
    F32x16 sum = zero16();
    for (int i = 0; i < n; i += 16) {
      F32x16 weights = exp16(sub(mul(load16(scores + i), factor), reference));
      if (n - i < 16) weights = blend(0xffffu << (n - i) & 0xffffu, weights, zero16());
      store16(scores + i, weights);
      sum = add(sum, weights);
    }
    return fold_sum16(sum);
  }

  void weigh_values(int first, int end, float* records) const {
    const int group = step_.at.group;
    const T* rows[kChunkKeys];
    const auto weigh = [&](int head, int heads, int begin, int stop) {
      for_pieces(heads, [&](int h, auto count) {
        value_heads<decltype(count)::value>(
            scores_ + (head + h) * kScoreStride, begin, stop, rows, dim_,
            records + static_cast<std::int64_t>(head + h) * step_.at.record, step_.at.record);
      });
    };
    const T* values = chunk_.template rows_of<T>(step_.args.v_cache);
    for (int k = 0; k < chunk_.common; ++k) {
      rows[k] = values + static_cast<std::int64_t>(chunk_.base + k) * dim_;
    }
    // What every node of the tile sees, in the same cache rows: all heads at once.
    const int shared = max_of(0, min_of(chunk_.common, chunk_.visible(first)));
    weigh(0, (end - first) * group, 0, shared);
    for (int node = first; node < end; ++node) {
      const int n = chunk_.visible(node);
      if (n <= shared) continue;
      if (step_.tree()) {
        const std::uint16_t* own = step_.ancestors_of(node);
        const int skipped = step_.prefix - chunk_.base;
        for (int k = shared; k < n; ++k) {
          rows[k] = values + static_cast<std::int64_t>(step_.prefix + own[k - skipped]) * dim_;
        }
      }
      weigh((node - first) * group, group, shared, n);
    }
  }

  const AttentionStep& step_;
  const int dim_;
  Chunk chunk_;
  float* keys_;
  float* step_keys_;
  float* queries_;
  float* scores_;  // and what becomes of them: weights
  float* step_scores_;
  T* staging_;
};

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
