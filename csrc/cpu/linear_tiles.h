// bf16 and int8 units by AMX tiles where there are any, else by vectors.
//
// A tile product adds 32 bf16 (64 int8) inputs of 16 rows to 16 outputs of each. An element of the
// result depends on its row and its column alone.
#pragma once

#include "linear_int4.h"
#include "linear_int8.h"
#include "linear_layout.h"
#include "linear_vectors.h"
#include "simd.h"
#if PTD_ISA_LEVEL >= 4
#include "tiles.h"
#endif

namespace ptd::cpu::PTD_ISA_NAMESPACE {

#if PTD_ISA_LEVEL >= 4

inline constexpr int kTileRows = 16;
inline constexpr std::int64_t kTileBytes = 1024;
// Weights come from memory; the tile loads themselves run too short ahead to hide that.
inline constexpr std::int64_t kPrefetchBytes = 2048;

// Accumulators 0..3 (inputs 0 or 1, panel 0 or 1), inputs 4 and 5, panels 6 and 7.
inline void configure_tiles(int first_rows, int second_rows) {
  TileConfig config;
  const int rows[8] = {first_rows, first_rows,  second_rows, second_rows,
                       first_rows, second_rows, kTileRows,   kTileRows};
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = static_cast<std::uint8_t>(rows[t]);
    config.row_bytes[t] = rows[t] == 0 ? 0 : 64;
  }
  load_tile_config(config);
}

inline void prefetch_tile(const unsigned char* p) {
  for (int line = 0; line < kTileRows; ++line) {
    _mm_prefetch(reinterpret_cast<const char*>(p + kPrefetchBytes + 64 * line), _MM_HINT_T0);
  }
}

// Adds tile k's products to the accumulators: up to 32 rows with one unit.
template <bool kInt8, bool kSecond>
inline void add_tile_products(const unsigned char* x, std::int64_t row_bytes,
                              const unsigned char* unit, std::int64_t tiles, std::int64_t k) {
  const unsigned char* panel0 = unit + k * kTileBytes;
  const unsigned char* panel1 = panel0 + tiles * kTileBytes;
  load_tile<4>(x + k * 64, row_bytes);
  load_tile<6>(panel0, 64);
  prefetch_tile(panel0);
  kInt8 ? add_int8_product<0, 4, 6>() : add_bf16_product<0, 4, 6>();
  load_tile<7>(panel1, 64);
  prefetch_tile(panel1);
  kInt8 ? add_int8_product<1, 4, 7>() : add_bf16_product<1, 4, 7>();
  if constexpr (kSecond) {
    load_tile<5>(x + kTileRows * row_bytes + k * 64, row_bytes);
    kInt8 ? add_int8_product<2, 5, 6>() : add_bf16_product<2, 5, 6>();
    kInt8 ? add_int8_product<3, 5, 7>() : add_bf16_product<3, 5, 7>();
  }
}

template <bool kSecond>
inline void zero_sums() {
  zero_tile<0>();
  zero_tile<1>();
  if constexpr (kSecond) {
    zero_tile<2>();
    zero_tile<3>();
  }
}

// The accumulators as rows of one unit: sums[i * kUnit + j].
template <bool kSecond>
inline void store_sums(void* sums) {
  auto* out = static_cast<unsigned char*>(sums);
  store_tile<0>(out, kUnit * 4);
  store_tile<1>(out + kPanel * 4, kUnit * 4);
  if constexpr (kSecond) {
    out += kTileRows * kUnit * 4;
    store_tile<2>(out, kUnit * 4);
    store_tile<3>(out + kPanel * 4, kUnit * 4);
  }
}

// Calls block(second, first_row, rows, unit) for all rows and units, at most 32 rows at a time;
// `second` says, as a type, whether these are more than 16.
template <typename Block>
inline void tile_blocks(int rows, Range units, const Block& block) {
  constexpr int kMost = 2 * kTileRows;
  const int first = min_of(rows, kTileRows);
  configure_tiles(first, min_of(rows - first, kTileRows));
  for (std::int64_t u = units.begin; u < units.end; ++u) {
    if (rows <= kTileRows) {
      block(Number<0>{}, 0, rows, u);
      continue;
    }
    for (int row = 0; row < rows; row += kMost) {
      // The last block overlaps the one before: the rows they share come out alike.
      const int begin = rows > kMost ? min_of(row, rows - kMost) : 0;
      block(Number<1>{}, begin, min_of(rows, kMost), u);
    }
  }
  release_tiles();
}

template <typename Done>
inline void bf16_units(const bf16* x, int rows, std::int64_t in, const bf16* panels, Range units,
                       const Done& done) {
  const auto* inputs = reinterpret_cast<const unsigned char*>(x);
  const auto* weights = reinterpret_cast<const unsigned char*>(panels);
  const std::int64_t row_bytes = 2 * in, tiles = in / 32;
  alignas(64) float sums[2 * kTileRows * kUnit];
  tile_blocks(rows, units, [&](auto second, int row, int n, std::int64_t u) {
    constexpr bool kSecond = decltype(second)::value != 0;
    const unsigned char* unit = weights + u * 2 * tiles * kTileBytes;
    zero_sums<kSecond>();
    for (std::int64_t k = 0; k < tiles; ++k) {
      add_tile_products<false, kSecond>(inputs + row * row_bytes, row_bytes, unit, tiles, k);
    }
    store_sums<kSecond>(sums);
    done(row, n, u * kUnit, sums);
  });
}

// A tile holds one group of inputs; its sums are scaled and added up outside the tiles.
template <typename Done>
inline void int8_units(const unsigned char* x, const float* row_scales, int rows,
                       const LinearWeight& w, Range units, const Done& done) {
  static_assert(kInt8Group == 64);
  const auto* weights = static_cast<const unsigned char*>(w.panels);
  const std::int64_t row_bytes = w.in_padded, tiles = w.in_padded / kInt8Group;
  alignas(64) std::int32_t sums[2 * kTileRows * kUnit];
  alignas(64) float totals[2 * kTileRows * kUnit];
  tile_blocks(rows, units, [&](auto second, int row, int n, std::int64_t u) {
    constexpr bool kSecond = decltype(second)::value != 0;
    const unsigned char* unit = weights + u * 2 * tiles * kTileBytes;
    for (int i = 0; i < n * kUnit; i += 16) store16(totals + i, zero16());
    for (std::int64_t k = 0; k < tiles; ++k) {
      zero_sums<kSecond>();
      add_tile_products<true, kSecond>(x + row * row_bytes, row_bytes, unit, tiles, k);
      store_sums<kSecond>(sums);
      for (int i = 0; i < n; ++i) {
        const F32x16 scale = splat16(row_scales[(row + i) * tiles + k]);
        for (int j = i * kUnit; j < (i + 1) * kUnit; j += kPanel) {
          const F32x16 sum = {_mm512_cvtepi32_ps(_mm512_load_si512(sums + j))};
          store16(totals + j, fma(scale, sum, load16(totals + j)));
        }
      }
    }
    const F32x16 lo = load16(w.scales + u * kUnit), hi = load16(w.scales + u * kUnit + kPanel);
    for (int i = 0; i < n * kUnit; i += kUnit) {
      store16(totals + i, mul(load16(totals + i), lo));
      store16(totals + i + kPanel, mul(load16(totals + i + kPanel), hi));
    }
    done(row, n, u * kUnit, totals);
  });
}

#else

template <typename Done>
inline void bf16_units(const bf16* x, int rows, std::int64_t in, const bf16* panels, Range units,
                       const Done& done) {
  vector_units_bf16(x, rows, in, panels, units, done);
}

template <typename Done>
inline void int8_units(const unsigned char* x, const float* row_scales, int rows,
                       const LinearWeight& w, Range units, const Done& done) {
  vector_units_int8(x, row_scales, rows, w, units, done);
}

#endif

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
