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

namespace ptd::cpu::PTD_ISA_NAMESPACE {

#if PTD_ISA_LEVEL >= 4

inline constexpr int kTileRows = 16;
inline constexpr std::int64_t kTileBytes = 1024;
// Weights come from memory; the tile loads themselves run too short ahead to hide that.
inline constexpr std::int64_t kPrefetchBytes = 4096;

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// Accumulators 0..3 (inputs 0 or 1, panel 0 or 1), inputs 4 and 5, panels 6 and 7.
inline void configure_tiles(int first_rows, int second_rows) {
  TileConfig config;
  const int rows[8] = {first_rows, first_rows,  second_rows, second_rows,
                       first_rows, second_rows, kTileRows,   kTileRows};
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = static_cast<std::uint8_t>(rows[t]);
    config.row_bytes[t] = rows[t] == 0 ? 0 : 64;
  }
  _tile_loadconfig(&config);
}

inline void prefetch_tile(const unsigned char* p) {
  for (int line = 0; line < kTileRows; ++line) {
    _mm_prefetch(reinterpret_cast<const char*>(p + kPrefetchBytes + 64 * line), _MM_HINT_T0);
  }
}

// Sums of up to 32 rows with one unit, as 32-bit elements: sums[i * kUnit + j].
template <bool kInt8, bool kSecond>
inline void tile_block(const unsigned char* x, std::int64_t row_bytes, const unsigned char* unit,
                       std::int64_t tiles, void* sums) {
  const unsigned char* panel0 = unit;
  const unsigned char* panel1 = unit + tiles * kTileBytes;
  const unsigned char* x1 = x + kTileRows * row_bytes;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kSecond) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t k = 0; k < tiles; ++k) {
    _tile_loadd(4, x + k * 64, row_bytes);
    _tile_loadd(6, panel0 + k * kTileBytes, 64);
    prefetch_tile(panel0 + k * kTileBytes);
    if constexpr (kInt8) {
      _tile_dpbssd(0, 4, 6);
    } else {
      _tile_dpbf16ps(0, 4, 6);
    }
    _tile_loadd(7, panel1 + k * kTileBytes, 64);
    prefetch_tile(panel1 + k * kTileBytes);
    if constexpr (kInt8) {
      _tile_dpbssd(1, 4, 7);
    } else {
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kSecond) {
      _tile_loadd(5, x1 + k * 64, row_bytes);
      if constexpr (kInt8) {
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
      } else {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  auto* out = static_cast<unsigned char*>(sums);
  _tile_stored(0, out, kUnit * 4);
  _tile_stored(1, out + kPanel * 4, kUnit * 4);
  if constexpr (kSecond) {
    _tile_stored(2, out + kTileRows * kUnit * 4, kUnit * 4);
    _tile_stored(3, out + kTileRows * kUnit * 4 + kPanel * 4, kUnit * 4);
  }
}

// Calls done(row, rows, unit, sums) for all rows and units.
template <bool kInt8, typename Done>
inline void tile_units(const unsigned char* x, int rows, std::int64_t row_bytes,
                       const unsigned char* panels, std::int64_t tiles, Range units,
                       const Done& done) {
  constexpr int kMost = 2 * kTileRows;
  const int first = min_of(rows, kTileRows);
  configure_tiles(first, min_of(rows - first, kTileRows));
  alignas(64) std::int32_t sums[kMost * kUnit];
  for (std::int64_t u = units.begin; u < units.end; ++u) {
    const unsigned char* unit = panels + u * 2 * tiles * kTileBytes;
    if (rows <= kTileRows) {
      tile_block<kInt8, false>(x, row_bytes, unit, tiles, sums);
      done(0, rows, u, sums);
      continue;
    }
    for (int row = 0; row < rows; row += kMost) {
      // The last block overlaps the one before: the rows they share come out alike.
      const int begin = rows > kMost ? min_of(row, rows - kMost) : 0;
      tile_block<kInt8, true>(x + begin * row_bytes, row_bytes, unit, tiles, sums);
      done(begin, min_of(rows, kMost), u, sums);
    }
  }
  _tile_release();
}

template <typename Done>
inline void bf16_units(const bf16* x, int rows, std::int64_t in, const bf16* panels, Range units,
                       const Done& done) {
  const auto hand_on = [&](int row, int n, std::int64_t u, const std::int32_t* sums) {
    done(row, n, u * kUnit, reinterpret_cast<const float*>(sums));
  };
  tile_units<false>(reinterpret_cast<const unsigned char*>(x), rows, 2 * in,
                    reinterpret_cast<const unsigned char*>(panels), in / 32, units, hand_on);
}

template <typename Done>
inline void int8_units(const unsigned char* x, const float* row_scales, int rows,
                       const LinearWeight& w, Range units, const Done& done) {
  const auto hand_on = [&](int row, int n, std::int64_t u, const std::int32_t* sums) {
    float block[2 * kTileRows * kUnit];
    const float* scales = w.scales + u * kUnit;
    for (int i = 0; i < n; ++i) {
      for (int p = 0; p < 2; ++p) {
        const int at = i * kUnit + p * kPanel;
        const F32x16 sum = {_mm512_cvtepi32_ps(_mm512_loadu_si512(sums + at))};
        store16(block + at, scaled(sum, row_scales[row + i], scales + p * kPanel));
      }
    }
    done(row, n, u * kUnit, block);
  };
  tile_units<true>(x, rows, w.in_padded, static_cast<const unsigned char*>(w.panels),
                   w.in_padded / 64, units, hand_on);
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
