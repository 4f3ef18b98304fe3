// What attention by AMX tiles is made of: products, packing of keys and values, weights.
#pragma once

#include "attention_vectors.h"
#include "simd.h"
#include "tiles.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

inline constexpr int kFullTileBytes = 1024;  // a full tile: 16 rows of 64 bytes

// Tiles 0..3: products. 4 and 5: queries or weights, of the given number of heads like the
// products. 6 and 7: keys or values.
inline void configure_head_tiles(int heads) {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = static_cast<std::uint8_t>(t < 6 ? heads : 16);
    config.row_bytes[t] = 64;
  }
  load_tile_config(config);
}

// The operands of products[head][column] (+)= sum over steps of left[head] right[column]: left has
// `steps` pieces of 64 bytes a row; the right piece of column tile c at step s lies at
// c * column_bytes + s * step_bytes.
struct Product {
  const bf16* left;
  std::int64_t left_bytes;  // between rows
  const bf16* right;
  std::int64_t column_bytes, step_bytes;
  int steps;
  float* out;
  std::int64_t out_bytes;  // between rows
};

// Columns [c * 16, (c + kTiles) * 16) for one tile of heads.
template <int kTiles, bool kAdd>
inline void multiply_columns(const Product& p, int c) {
  const auto* right = reinterpret_cast<const unsigned char*>(p.right) + c * p.column_bytes;
  float* out = p.out + c * 16;
  if constexpr (kAdd) {
    load_tile<0>(out, p.out_bytes);
    if constexpr (kTiles > 1) load_tile<1>(out + 16, p.out_bytes);
    if constexpr (kTiles > 2) load_tile<2>(out + 32, p.out_bytes);
    if constexpr (kTiles > 3) load_tile<3>(out + 48, p.out_bytes);
  } else {
    zero_tile<0>();
    if constexpr (kTiles > 1) zero_tile<1>();
    if constexpr (kTiles > 2) zero_tile<2>();
    if constexpr (kTiles > 3) zero_tile<3>();
  }
  for (int s = 0; s < p.steps; ++s, right += p.step_bytes) {
    load_tile<4>(p.left + s * 32, p.left_bytes);
    load_tile<6>(right, 64);
    add_bf16_product<0, 4, 6>();
    if constexpr (kTiles > 1) {
      load_tile<7>(right + p.column_bytes, 64);
      add_bf16_product<1, 4, 7>();
    }
    if constexpr (kTiles > 2) {
      load_tile<6>(right + 2 * p.column_bytes, 64);
      add_bf16_product<2, 4, 6>();
    }
    if constexpr (kTiles > 3) {
      load_tile<7>(right + 3 * p.column_bytes, 64);
      add_bf16_product<3, 4, 7>();
    }
  }
  store_tile<0>(out, p.out_bytes);
  if constexpr (kTiles > 1) store_tile<1>(out + 16, p.out_bytes);
  if constexpr (kTiles > 2) store_tile<2>(out + 32, p.out_bytes);
  if constexpr (kTiles > 3) store_tile<3>(out + 48, p.out_bytes);
}

template <bool kAdd>
inline void multiply(const Product& p, int columns) {
  int c = 0;
  for (; c + 4 <= columns; c += 4) multiply_columns<4, kAdd>(p, c);
  if (columns - c == 3) multiply_columns<3, kAdd>(p, c);
  if (columns - c == 2) multiply_columns<2, kAdd>(p, c);
  if (columns - c == 1) multiply_columns<1, kAdd>(p, c);
}

// The same for two tiles of heads, the second `left_tile` and `out_tile` elements behind the first,
// so that the right side is read once.
template <int kTiles>
inline void multiply_columns_twice(const Product& p, int c, int left_tile, int out_tile) {
  const auto* right = reinterpret_cast<const unsigned char*>(p.right) + c * p.column_bytes;
  float* out = p.out + c * 16;
  zero_tile<0>();
  zero_tile<1>();
  if constexpr (kTiles > 1) {
    zero_tile<2>();
    zero_tile<3>();
  }
  for (int s = 0; s < p.steps; ++s, right += p.step_bytes) {
    load_tile<4>(p.left + s * 32, p.left_bytes);
    load_tile<5>(p.left + left_tile + s * 32, p.left_bytes);
    load_tile<6>(right, 64);
    add_bf16_product<0, 4, 6>();
    add_bf16_product<1, 5, 6>();
    if constexpr (kTiles > 1) {
      load_tile<7>(right + p.column_bytes, 64);
      add_bf16_product<2, 4, 7>();
      add_bf16_product<3, 5, 7>();
    }
  }
  store_tile<0>(out, p.out_bytes);
  store_tile<1>(out + out_tile, p.out_bytes);
  if constexpr (kTiles > 1) {
    store_tile<2>(out + 16, p.out_bytes);
    store_tile<3>(out + 16 + out_tile, p.out_bytes);
  }
}
inline void multiply_twice(const Product& p, int columns, int left_tile, int out_tile) {
  int c = 0;
  for (; c + 2 <= columns; c += 2) multiply_columns_twice<2>(p, c, left_tile, out_tile);
  if (c < columns) multiply_columns_twice<1>(p, c, left_tile, out_tile);
}

// Sixteen rows of keys [dim] as pairs of dimensions [padded_dim / 2][16][2], zeros beyond dim.
inline void pair_dimensions(const bf16* rows, int dim, int padded_dim, bf16* out) {
  for (int d = 0; d < dim; d += 8) {
    const Columns columns = columns_of(rows + d, static_cast<std::int64_t>(dim) * 2);
    for (int c = 0; c < 4; ++c) _mm512_storeu_ps(out + (d / 2 + c) * 32, columns.column[c].v);
  }
  for (int d = dim; d < padded_dim; d += 2) {
    _mm512_storeu_si512(out + d * 16, _mm512_setzero_si512());
  }
}

// Two rows of values [dim] as one row of each tile of [dim / 16][16 pairs][16][2].
inline void pair_positions(const bf16* even, const bf16* odd, int dim, bf16* out) {
  const auto wide = [](const bf16* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  };
  for (int d = 0; d < dim; d += 16) {
    const __m512i pairs = _mm512_or_si512(wide(even + d), _mm512_slli_epi32(wide(odd + d), 16));
    _mm512_storeu_si512(out + d * 32, pairs);
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

// 2^x for x <= 0 within 3e-6 of it; below -126 as at -126, which is as good as nothing here.
inline __m512 exp2_nonpositive(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-126.0f), x);
  const __m512 magic = _mm512_set1_ps(12582912.0f);  // 1.5 * 2^23: adding it rounds to integers
  const __m512 n = _mm512_sub_ps(_mm512_add_ps(x, magic), magic);
  const __m512 r = _mm512_sub_ps(x, n);
  // The polynomial of degree 4 with the least relative error for |r| <= 1/2, and 1 at 0.
  __m512 p = _mm512_set1_ps(9.5828532e-3f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.59064262e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.40240986e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.93124193e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
