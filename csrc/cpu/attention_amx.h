// Attention of a tile by matrix tiles, for bf16.
//
// Scores: queries times keys, which are packed by pairs of dimensions. Values: the weights, rounded
// to bf16, times values packed by pairs of positions, 32 positions at a time, which begin at
// multiples of 32. A tile product gives each row of the left operand what it would give it alone,
// and a weight of zero adds nothing to a sum; so a head gets the same bits whether it meets the
// values of 32 positions in a packing that all nodes share or in one made for its node, with zeros
// where it sees nothing. The latter is needed where positions lie in other cache rows for every
// node, and where a value that only some nodes see is not finite (0 * NaN is NaN).
#pragma once

#include "attention_rows.h"
#include "attention_tiles.h"
#include "simd.h"
#include "tiles.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

class TileAttention {
 public:
  static constexpr int kTiles = 2;  // that attend() takes at once

  TileAttention(const AttentionStep& step, unsigned char* memory)
      : step_(step),
        dim_(step.args.head_dim),
        padded_dim_(step.at.padded_dim),
        tile_heads_(min_of(step.args.rows, step.at.tile_nodes) * step.at.group),
        chunk_{step},
        keys_(reinterpret_cast<bf16*>(memory + step.at.keys)),
        packed_values_(reinterpret_cast<bf16*>(memory + step.at.values)),
        step_keys_(reinterpret_cast<bf16*>(memory + step.at.step_keys)),
        queries_(reinterpret_cast<bf16*>(memory + step.at.queries)),
        scores_(reinterpret_cast<float*>(memory + step.at.scores)),
        weights_(reinterpret_cast<bf16*>(memory + step.at.weights)),
        step_scores_(reinterpret_cast<float*>(memory + step.at.step_scores)),
        staging_(reinterpret_cast<bf16*>(memory + step.at.staging)),
        sums_(reinterpret_cast<float*>(memory + step.at.sums)) {
    configure_head_tiles(tile_heads_);
  }
  ~TileAttention() { release_tiles(); }
  TileAttention(const TileAttention&) = delete;
  TileAttention& operator=(const TileAttention&) = delete;

  // Packs keys and values of a chunk, as far as the nodes [first, end) see them.
  void load(int head, int chunk, int first, int end) {
    chunk_.select(head, chunk, first, end);
    copy_queries(first, end);
    const bf16* keys = chunk_.rows_of<bf16>(step_.args.k_cache);
    pack_keys(keys + static_cast<std::int64_t>(chunk_.base) * dim_, chunk_.common, keys_);
    if (chunk_.own) {
      pack_keys(keys + static_cast<std::int64_t>(step_.prefix) * dim_, end, step_keys_);
    }
    values_ = chunk_.rows_of<bf16>(step_.args.v_cache);
    pack_values();
    for (Slot& slot : slots_) slot.tile = -1;
  }

  // The records of the heads of nodes [first, end), all within those of load(). Heads that see
  // nothing of the chunk get none that means anything.
  void attend(int first, int end, float* records) {
    const int seen = chunk_.most_visible(first, end);
    if (seen <= 0) return;
    // Both tiles pass each stage before the next one: its stores are then out of the way.
    const int middle = min_of(first + step_.at.tile_nodes, end);
    score_tile(first, middle, seen, scores_);
    if (middle < end) score_tile(middle, end, seen, scores_ + kTileHeads * kScoreStride);
    weigh_tile(first, middle, seen, 0, records);
    if (middle < end) {
      weigh_tile(middle, end, seen, kTileHeads, records + tile_heads_ * step_.at.record);
    }
    multiply_common_values(middle < end, seen);
    add_own_values(first, end);
    const int heads = (end - first) * step_.at.group;
    for (int h = 0; h < heads; ++h, records += step_.at.record) {
      const float* sums = sums_ + sums_row(h) * dim_;
      for (int d = 0; d < dim_; d += 16) store16(records + d, load16(sums + d));
    }
  }

 private:
  // n rows of the cache in blocks of sixteen, the last one filled up with zeros.
  void pack_keys(const bf16* rows, int n, bf16* out) {
    const int block = 16 * dim_;
    int k = 0;
    for (; k + 16 <= n; k += 16, out += 16 * padded_dim_) {
      pair_dimensions(rows + static_cast<std::int64_t>(k) * dim_, dim_, padded_dim_, out);
    }
    if (k == n) return;
    const int left = (n - k) * dim_;
    std::memcpy(staging_, rows + static_cast<std::int64_t>(k) * dim_,
                static_cast<std::size_t>(left) * 2);
    std::memset(staging_ + left, 0, static_cast<std::size_t>(block - left) * 2);
    pair_dimensions(staging_, dim_, padded_dim_, out);
  }

  // The values that all nodes find in the same rows, 32 positions at a time.
  void pack_values() {
    const int common = chunk_.common, committed = step_.prefix - chunk_.base;
    const int tiles = step_.tree() ? common / 32 : (common + 31) / 32;
    const bf16* rows = values_ + static_cast<std::int64_t>(chunk_.base) * dim_;
    const auto row = [&](int k) {
      return k < common ? rows + static_cast<std::int64_t>(k) * dim_ : kZeros;
    };
    for (shared_ = 0; shared_ < tiles; ++shared_) {
      const int begin = shared_ * 32;
      for (int k = max_of(begin, committed); k < min_of(begin + 32, common); ++k) {
        if (!all_finite(row(k), dim_)) return;
      }
      bf16* out = packed_values_ + begin * dim_;
      for (int k = begin; k < begin + 32; k += 2, out += 32) {
        pair_positions(row(k), row(k + 1), dim_, out);
      }
    }
  }

  void copy_queries(int first, int end) {
    first_ = first;
    const int group = step_.at.group;
    for (int node = first; node < end; ++node) {
      bf16* queries = queries_of(node);
      for (int g = 0; g < group; ++g, queries += padded_dim_) {
        const bf16* query = step_.query<bf16>(node, chunk_.head * group + g);
        for (int d = 0; d < padded_dim_; d += 16) {
          const __m256i part = d < dim_
                                   ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(query + d))
                                   : _mm256_setzero_si256();
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(queries + d), part);
        }
      }
    }
  }
  // Tiles of sixteen heads, of which the last may be unused.
  bf16* queries_of(int node) const {
    const int tile = (node - first_) / step_.at.tile_nodes,
              in_tile = (node - first_) % step_.at.tile_nodes;
    return queries_ + (tile * kTileHeads + in_tile * step_.at.group) * padded_dim_;
  }

  void score_tile(int first, int end, int seen, float* scores) {
    const bf16* queries = queries_of(first);
    score(queries, keys_, min_of(chunk_.common, seen), scores, kScoreStride);
    if (!chunk_.own) return;
    const int step_stride = (end + 15) / 16 * 16;
    score(queries, step_keys_, end, step_scores_, step_stride);
    chunk_.pick_ancestors(first, end, step_scores_, step_stride, scores);
  }

  // Writes the weights of a tile of heads, and their sums into the records.
  void weigh_tile(int first, int end, int seen, int row, float* records) {
    const int group = step_.at.group, heads = (end - first) * group;
    const float* scores = scores_ + row * kScoreStride;
    bf16* weights = weights_ + row * kWeightStride;
    chunk_.find_largest(first, end, scores, records);
    for (int h = 0; h < heads; ++h, records += step_.at.record) {
      const int n = chunk_.visible(first + h / group);
      if (n > 0) records[dim_ + 1] = weigh(scores, n, seen, records[dim_], weights);
      scores += kScoreStride;
      weights += kWeightStride;
    }
  }

  void score(const bf16* queries, const bf16* keys, int n, float* scores, int stride) const {
    const Product product = {queries,        static_cast<std::int64_t>(padded_dim_) * 2,
                             keys,           static_cast<std::int64_t>(padded_dim_) * 32,
                             kFullTileBytes, padded_dim_ / 32,
                             scores,         static_cast<std::int64_t>(stride) * 4};
    multiply<false>(product, (n + 15) / 16);
  }

  // Writes the weights exp(score * scale - largest) of n positions, rounded, and zeros up to `seen`
  // in multiples of 32; returns the sum of what it wrote. Pair l of it takes the positions that
  // leave 2 l and 2 l + 1 modulo 32.
  float weigh(const float* scores, int n, int seen, float largest, bf16* weights) const {
    constexpr float kLog2E = 1.44269504f;
    const __m512 factor = _mm512_set1_ps(step_.args.scale * kLog2E);
    const __m512 reference = _mm512_set1_ps(largest * kLog2E);
    const auto rounded = [&](int i) {
      const auto weight = [&](int k) {
        return exp2_nonpositive(_mm512_fmsub_ps(_mm512_loadu_ps(scores + k), factor, reference));
      };
      return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(weight(i + 16), weight(i)));
    };
    const __m512bh ones = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1), _mm512_set1_ps(1));
    __m512 sum = _mm512_setzero_ps();
    const auto keep = [&](int i, __m512i pairs) {
      _mm512_storeu_si512(weights + i, pairs);
      sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(pairs), ones);
    };
    int i = 0;
    for (; i + 32 <= n; i += 32) keep(i, rounded(i));
    if (i < n) {
      const auto visible = static_cast<__mmask32>((std::uint32_t{1} << (n - i)) - 1);
      keep(i, _mm512_maskz_mov_epi16(visible, rounded(i)));
      i += 32;
    }
    for (; i < seen; i += 32) _mm512_storeu_si512(weights + i, _mm512_setzero_si512());
    return fold_sum16({sum});
  }

  // Row of head h of the tiles in attend() in sums_; its weights are in the same row of weights_.
  int sums_row(int h) const { return h < tile_heads_ ? h : h - tile_heads_ + kTileHeads; }

  void multiply_common_values(bool two_tiles, int seen) const {
    const Product product = {weights_,
                             kWeightStride * 2,
                             packed_values_,
                             kFullTileBytes,
                             static_cast<std::int64_t>(dim_) * 64,
                             min_of(shared_, (seen + 31) / 32),
                             sums_,
                             static_cast<std::int64_t>(dim_) * 4};
    if (two_tiles) {
      multiply_twice(product, dim_ / 16, kTileHeads * kWeightStride, kTileHeads * dim_);
    } else {
      multiply<false>(product, dim_ / 16);
    }
  }

  // The rest, node by node: several at once are made ready, then multiplied, so that the tile loads
  // do not wait for the stores.
  void add_own_values(int first, int end) {
    const int group = step_.at.group;
    struct {
      int node, slot, tiles;
    } ready[kStagedTiles];
    int count = 0, slots = 0;
    bool configured = false;
    const auto multiply_ready = [&] {
      if (count == 0) return;
      if (!configured && group != tile_heads_) configure_head_tiles(group);
      configured = true;
      for (int i = 0; i < count; ++i) {
        const int row = sums_row((ready[i].node - first) * group);
        const Product product = {weights_ + row * kWeightStride + slots_[ready[i].slot].tile * 32,
                                 kWeightStride * 2,
                                 staging_ + ready[i].slot * 32 * dim_,
                                 kFullTileBytes,
                                 static_cast<std::int64_t>(dim_) * 64,
                                 ready[i].tiles,
                                 sums_ + row * dim_,
                                 static_cast<std::int64_t>(dim_) * 4};
        multiply<true>(product, dim_ / 16);
      }
      count = slots = 0;
    };
    for (int node = first; node < end; ++node) {
      const int tiles = (max_of(chunk_.visible(node), 0) + 31) / 32 - shared_;
      for (int done = 0; done < tiles;) {
        if (slots == kStagedTiles) multiply_ready();
        const int n = min_of(tiles - done, kStagedTiles - slots);
        for (int t = 0; t < n; ++t) stage_values(slots + t, shared_ + done + t, node);
        ready[count++] = {node, slots, n};
        slots += n;
        done += n;
      }
    }
    multiply_ready();
    if (configured && group != tile_heads_) configure_head_tiles(tile_heads_);
  }

  // The values that a node sees at the 32 positions of a tile, zeros where it sees none. Pairs of
  // committed rows are there already if the slot held the same positions before.
  void stage_values(int slot, int tile, int node) {
    const int begin = tile * 32, end = min_of(begin + 32, chunk_.visible(node));
    const int committed = step_.prefix - chunk_.base;
    const std::uint16_t* own = step_.ancestors_of(node);
    const auto row = [&](int k) -> const bf16* {
      if (k >= end) return kZeros;
      const bool moved = step_.tree() && k >= committed;
      const int at = moved ? step_.prefix + own[k - committed] : chunk_.base + k;
      return values_ + static_cast<std::int64_t>(at) * dim_;
    };
    Slot& held = slots_[slot];
    const bool same = held.tile == tile;
    int k = same ? max_of(begin, min_of(committed, begin + 32)) / 2 * 2 : begin;
    const int clear = same ? held.end : begin + 32;
    held = {tile, end};
    bf16* out = staging_ + slot * 32 * dim_ + (k - begin) * 16;
    for (; k < end; k += 2, out += 32) pair_positions(row(k), row(k + 1), dim_, out);
    for (; k < clear; k += 2, out += 32) {
      for (int d = 0; d < dim_; d += 16) _mm512_storeu_si512(out + d * 32, _mm512_setzero_si512());
    }
  }

  static constexpr bf16 kZeros[256] = {};  // a row of values

  const AttentionStep& step_;
  const int dim_, padded_dim_;
  const int tile_heads_;  // of a full tile
  Chunk chunk_;
  bf16* keys_;
  bf16* packed_values_;
  bf16* step_keys_;
  bf16* queries_;
  float* scores_;
  bf16* weights_;
  float* step_scores_;
  bf16* staging_;
  float* sums_;
  const bf16* values_ = nullptr;
  int shared_ = 0;  // tiles of 32 positions in packed_values_
  int first_ = 0;   // the node whose queries come first in queries_
  // What lies in the slots of staging_: values of a tile of positions, zeros from `end` on.
  struct Slot {
    int tile, end;
  } slots_[kStagedTiles];
};

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
