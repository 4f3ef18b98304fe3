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
#include "attention_vectors.h"
#include "simd.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

// Tiles 0..3: products of a tile of heads. 4: its queries or weights. 5: keys or values. 6 and 7:
// products and weights of a single node.
inline void configure_attention_tiles(const AttentionArgs& args) {
  struct alignas(64) {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  } config;
  const AttentionLayout at = attention_layout(args);
  const int heads = min_of(args.rows, at.tile_nodes) * at.group;
  const int rows[8] = {heads, heads, heads, heads, heads, 16, at.group, at.group};
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = static_cast<std::uint8_t>(rows[t]);
    config.row_bytes[t] = 64;
  }
  _tile_loadconfig(&config);
}

// The tile loads do not tell the compiler that they read memory.
inline void finish_stores() { __asm__ volatile("" ::: "memory"); }

// Products of a tile of heads with kTiles column tiles, out[head * out_stride + column]. Left:
// `steps` pieces of 64 bytes a row; right: the piece of column tile c at step s lies at
// c * column_bytes + s * step_bytes.
template <int kTiles>
inline void multiply_tiles(const bf16* left, std::int64_t left_bytes, const bf16* right,
                           std::int64_t column_bytes, std::int64_t step_bytes, int steps,
                           float* out, std::int64_t out_bytes) {
  const auto* piece = reinterpret_cast<const unsigned char*>(right);
  _tile_zero(0);
  if constexpr (kTiles > 1) _tile_zero(1);
  if constexpr (kTiles > 2) _tile_zero(2);
  if constexpr (kTiles > 3) _tile_zero(3);
  for (int s = 0; s < steps; ++s, piece += step_bytes) {
    _tile_loadd(4, left + s * 32, left_bytes);
    _tile_loadd(5, piece, 64);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (kTiles > 1) {
      _tile_loadd(5, piece + column_bytes, 64);
      _tile_dpbf16ps(1, 4, 5);
    }
    if constexpr (kTiles > 2) {
      _tile_loadd(5, piece + 2 * column_bytes, 64);
      _tile_dpbf16ps(2, 4, 5);
    }
    if constexpr (kTiles > 3) {
      _tile_loadd(5, piece + 3 * column_bytes, 64);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  _tile_stored(0, out, out_bytes);
  if constexpr (kTiles > 1) _tile_stored(1, out + 16, out_bytes);
  if constexpr (kTiles > 2) _tile_stored(2, out + 32, out_bytes);
  if constexpr (kTiles > 3) _tile_stored(3, out + 48, out_bytes);
}

// The same with any number of column tiles.
inline void multiply(const bf16* left, std::int64_t left_bytes, const bf16* right,
                     std::int64_t column_bytes, std::int64_t step_bytes, int steps, int columns,
                     float* out, std::int64_t out_bytes) {
  const auto tiles = [&](int c, auto run) {
    run(left, left_bytes, right + c * column_bytes / 2, column_bytes, step_bytes, steps,
        out + c * 16, out_bytes);
  };
  int c = 0;
  for (; c + 4 <= columns; c += 4) tiles(c, multiply_tiles<4>);
  if (columns - c == 3) tiles(c, multiply_tiles<3>);
  if (columns - c == 2) tiles(c, multiply_tiles<2>);
  if (columns - c == 1) tiles(c, multiply_tiles<1>);
}

// Sixteen rows of keys [dim] as pairs of dimensions [padded_dim / 2][16][2], zeros beyond dim.
inline void pair_dimensions(const bf16* rows, int dim, int padded_dim, bf16* out) {
  for (int d = 0; d < dim; d += 8) {
    const Columns columns = columns_of(rows + d, static_cast<std::int64_t>(dim) * 2);
    for (int c = 0; c < 4; ++c) {
      _mm512_storeu_ps(out + (d / 2 + c) * 32, columns.column[c].v);
    }
  }
  std::memset(out + dim * 16, 0, static_cast<std::size_t>(padded_dim - dim) * 32);
}

// 32 rows of values [dim] as tiles [dim / 16][16 pairs of rows][16][2].
inline void pair_positions(const bf16* const* rows, int dim, bf16* out) {
  for (int pair = 0; pair < 16; ++pair) {
    const bf16* even = rows[2 * pair];
    const bf16* odd = rows[2 * pair + 1];
    for (int d = 0; d < dim; d += 16) {
      const auto wide = [d](const bf16* row) {
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + d)));
      };
      _mm512_storeu_si512(out + (d + pair) * 32,
                          _mm512_or_si512(wide(even), _mm512_slli_epi32(wide(odd), 16)));
    }
  }
}

inline bool all_finite(const bf16* row, int dim) {
  const __m256i exponent = _mm256_set1_epi16(0x7f80);
  for (int d = 0; d < dim; d += 16) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + d));
    if (_mm256_cmpeq_epi16_mask(_mm256_and_si256(v, exponent), exponent) != 0) return false;
  }
  return true;
}

class TileAttention {
 public:
  TileAttention(const AttentionStep& step, unsigned char* memory)
      : step_(step),
        dim_(step.args.head_dim),
        padded_dim_(step.at.padded_dim),
        keys_(reinterpret_cast<bf16*>(memory + step.at.keys)),
        packed_values_(reinterpret_cast<bf16*>(memory + step.at.values)),
        step_keys_(reinterpret_cast<bf16*>(memory + step.at.step_keys)),
        queries_(reinterpret_cast<bf16*>(memory + step.at.queries)),
        scores_(reinterpret_cast<float*>(memory + step.at.scores)),
        weights_(reinterpret_cast<bf16*>(memory + step.at.weights)),
        step_scores_(reinterpret_cast<float*>(memory + step.at.step_scores)),
        staging_(reinterpret_cast<bf16*>(memory + step.at.staging)),
        sums_(reinterpret_cast<float*>(memory + step.at.sums)) {}

  // Packs keys and values of a chunk, as far as the nodes [first, end) see them.
  void load(int head, int chunk, int first, int end) {
    head_ = head;
    base_ = chunk * kChunkKeys;
    const std::int64_t offset = head * step_.args.kv_head_stride;
    const bf16* keys = static_cast<const bf16*>(step_.args.k_cache) + offset;
    values_ = static_cast<const bf16*>(step_.args.v_cache) + offset;
    const int seen = step_.most_keys(first, end);
    common_ = max_of(0, min_of(min_of(step_.common_keys(), seen) - base_, kChunkKeys));
    pack_keys(keys + static_cast<std::int64_t>(base_) * dim_, common_, keys_);
    if (step_.tree() && common_ < kChunkKeys && base_ < seen) {
      pack_keys(keys + static_cast<std::int64_t>(step_.prefix) * dim_, end, step_keys_);
    }
    pack_values();
  }

  // The records of the heads of nodes [first, end), all within those of load(). Heads that see
  // nothing of the chunk get none that means anything.
  void attend(int first, int end, float* records) {
    const int group = step_.at.group, heads = (end - first) * group;
    const int seen = min_of(step_.most_keys(first, end) - base_, kChunkKeys);
    if (seen <= 0) return;
    for (int h = 0; h < heads; ++h) {
      const bf16* query = step_.query<bf16>(first + h / group, head_ * group + h % group);
      std::memcpy(queries_ + h * padded_dim_, query, static_cast<std::size_t>(dim_) * 2);
      std::memset(queries_ + h * padded_dim_ + dim_, 0,
                  static_cast<std::size_t>(padded_dim_ - dim_) * 2);
    }
    const int common = min_of(common_, seen);
    score(keys_, common, scores_, kChunkKeys);
    const int step_stride = (end + 15) / 16 * 16;
    if (seen > common) score(step_keys_, end, step_scores_, step_stride);
    for (int h = 0; h < heads; ++h) {
      const int node = first + h / group;
      const int n = min_of(step_.keys_of(node) - base_, kChunkKeys);
      if (n <= 0) continue;
      if (step_.tree()) {
        const std::uint16_t* own = step_.ancestors_of(node);
        const int skipped = step_.prefix - base_;
        for (int k = common; k < n; ++k) {
          scores_[h * kChunkKeys + k] = step_scores_[h * step_stride + own[k - skipped]];
        }
      }
      float* record = records + static_cast<std::int64_t>(h) * step_.at.record;
      weigh(h, n, seen, record[dim_], record[dim_ + 1]);
    }
    weigh_values(first, end, seen);
    for (int h = 0; h < heads; ++h) {
      float* record = records + static_cast<std::int64_t>(h) * step_.at.record;
      for (int d = 0; d < dim_; d += 16) store16(record + d, load16(sums_ + h * dim_ + d));
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
    const bf16* const zeros = zero_row();
    const int tiles = step_.tree() ? common_ / 32 : (common_ + 31) / 32;
    for (shared_ = 0; shared_ < tiles; ++shared_) {
      const bf16* rows[32];
      for (int s = 0; s < 32; ++s) {
        const int k = shared_ * 32 + s;
        rows[s] = k < common_ ? values_ + static_cast<std::int64_t>(base_ + k) * dim_ : zeros;
        if (base_ + k >= step_.prefix && k < common_ && !all_finite(rows[s], dim_)) return;
      }
      pair_positions(rows, dim_, packed_values_ + shared_ * 32 * dim_);
    }
  }

  void score(const bf16* keys, int n, float* scores, int stride) const {
    finish_stores();
    multiply(queries_, padded_dim_ * 2, keys, padded_dim_ * 32, 1024, padded_dim_ / 32,
             (n + 15) / 16, scores, static_cast<std::int64_t>(stride) * 4);
  }

  void weigh(int h, int n, int seen, float& largest, float& sum) const {
    bf16* weights = weights_ + h * kChunkKeys;
    weigh_scores(scores_ + h * kChunkKeys, n, step_.args.scale, largest, sum, [&](int i, F32x16 w) {
      const __m256i rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(w.v));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + i), rounded);
      const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16);
      return F32x16{_mm512_castsi512_ps(wide)};
    });
    for (int i = (n + 15) / 16 * 16; i < (seen + 31) / 32 * 32; i += 16) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + i), _mm256_setzero_si256());
    }
  }

  void weigh_values(int first, int end, int seen) {
    finish_stores();
    multiply(weights_, kChunkKeys * 2, packed_values_, 1024, static_cast<std::int64_t>(dim_) * 64,
             min_of(shared_, (seen + 31) / 32), dim_ / 16, sums_,
             static_cast<std::int64_t>(dim_) * 4);
    for (int node = first; node < end; ++node) {
      const int n = min_of(step_.keys_of(node) - base_, kChunkKeys);
      for (int t = shared_; t * 32 < n; ++t) {
        gather_values(node, t * 32, n);
        const int head = (node - first) * step_.at.group;
        for (int d = 0; d < dim_; d += 16) {
          float* sums = sums_ + head * dim_ + d;
          _tile_loadd(6, sums, static_cast<std::int64_t>(dim_) * 4);
          _tile_loadd(7, weights_ + head * kChunkKeys + t * 32, kChunkKeys * 2);
          _tile_loadd(5, staging_ + d * 32, 64);
          _tile_dpbf16ps(6, 7, 5);
          _tile_stored(6, sums, static_cast<std::int64_t>(dim_) * 4);
        }
      }
    }
  }

  // The values that a node sees at the 32 positions from base_ + k, of which it sees n - k.
  void gather_values(int node, int k, int n) {
    const bf16* const zeros = zero_row();
    const std::uint16_t* own = step_.ancestors_of(node);
    const bf16* rows[32];
    for (int s = 0; s < 32; ++s) {
      const int position = base_ + k + s;
      std::int64_t row = position;
      if (step_.tree() && position >= step_.prefix && k + s < n) {
        row = step_.prefix + own[position - step_.prefix];
      }
      rows[s] = k + s < n ? values_ + row * dim_ : zeros;
    }
    pair_positions(rows, dim_, staging_);
    finish_stores();
  }

  static const bf16* zero_row() {
    static constexpr bf16 kZeros[256] = {};
    return kZeros;
  }

  const AttentionStep& step_;
  const int dim_, padded_dim_;
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
  int head_ = 0, base_ = 0;
  int common_ = 0;  // keys of the chunk that are in keys_
  int shared_ = 0;  // tiles of 32 positions in packed_values_
};

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
