// Linear by vectors: each lane is one output, inputs are broadcast.
#pragma once

#include "linear_layout.h"
#include "simd.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

// Rows and panels of one block, such that the accumulators fit the registers. Few rows take more
// panels: that many chains have to be in flight to hide the latency of a multiply-add.
#if PTD_ISA_LEVEL >= 2
inline constexpr int kBlockRows = 6;
inline constexpr int kWidePanels = 4;
#else
inline constexpr int kBlockRows = 2;
inline constexpr int kWidePanels = 2;
#endif

// A number as a type, for lambdas.
template <int N>
struct Number {
  static constexpr int value = N;
};

// Calls body(Number<rows>) for 1 <= rows <= MR.
template <int MR, typename Body>
inline void rows_of_block(int rows, const Body& body) {
  if constexpr (MR >= 1) {
    if (rows == MR) {
      body(Number<MR>{});
    } else {
      rows_of_block<MR - 1>(rows, body);
    }
  }
}

// One block: MR rows times NP panels, `step(acc, k)` for each of `steps`; then hands the block on.
template <int MR, int NP, typename Step, typename Done>
inline void block_of(int row, std::int64_t column, std::int64_t steps, const Step& step,
                     const Done& done) {
  F32x16 acc[MR][NP];
  for (int i = 0; i < MR; ++i) {
    for (int p = 0; p < NP; ++p) acc[i][p] = zero16();
  }
  for (std::int64_t k = 0; k < steps; ++k) step(acc, k);
  float block[MR * kUnit];
  for (int half = 0; half < NP; half += 2) {
    for (int i = 0; i < MR; ++i) {
      store16(block + i * kUnit, acc[i][half]);
      store16(block + i * kUnit + kPanel, acc[i][half + 1]);
    }
    done(row, MR, column + half * kPanel, block);
  }
}

// Runs `kernel(MR, NP, row, unit)` over all rows and units.
template <typename Kernel>
inline void blocks_of_units(int rows, Range units, const Kernel& kernel) {
  constexpr int kWideUnits = kWidePanels / 2;
  for (std::int64_t u = units.begin; u < units.end;) {
    const bool wide = rows <= 2 && u + kWideUnits <= units.end;
    for (int row = 0; row < rows; row += kBlockRows) {
      rows_of_block<kBlockRows>(min_of(kBlockRows, rows - row), [&](auto mr) {
        if constexpr (decltype(mr)::value <= 2 && kWidePanels > 2) {
          if (wide) {
            kernel(mr, Number<kWidePanels>{}, row, u);
            return;
          }
        }
        kernel(mr, Number<2>{}, row, u);
      });
    }
    u += wide ? kWideUnits : 1;
  }
}

template <typename Done>
inline void vector_units_f32(const float* x, int rows, const LinearWeight& w, Range units,
                             const Done& done) {
  const std::int64_t in = w.in_features;
  const float* panels = static_cast<const float*>(w.panels);
  blocks_of_units(rows, units, [&](auto mr, auto np, int row, std::int64_t u) {
    constexpr int MR = decltype(mr)::value, NP = decltype(np)::value;
    const float* from = x + row * in;
    const float* panel = panels + u * 2 * kPanel * in;
    const auto step = [&](F32x16(&acc)[MR][NP], std::int64_t k) {
      F32x16 weight[NP];
      for (int p = 0; p < NP; ++p) weight[p] = load16(panel + (p * in + k) * kPanel);
      for (int i = 0; i < MR; ++i) {
        const F32x16 value = splat16(from[i * in + k]);
        for (int p = 0; p < NP; ++p) acc[i][p] = fma(value, weight[p], acc[i][p]);
      }
    };
    block_of<MR, NP>(row, u * kUnit, in, step, done);
  });
}

// bf16: a step takes a pair of inputs.
template <typename Done>
inline void vector_units_bf16(const bf16* x, int rows, std::int64_t in, const bf16* panels,
                              Range units, const Done& done) {
  blocks_of_units(rows, units, [&](auto mr, auto np, int row, std::int64_t u) {
    constexpr int MR = decltype(mr)::value, NP = decltype(np)::value;
    const bf16* from = x + row * in;
    const bf16* panel = panels + u * 2 * kPanel * in;
    const auto step = [&](F32x16(&acc)[MR][NP], std::int64_t k) {
#if PTD_ISA_LEVEL >= 3
      __m512bh weight[NP];
      for (int p = 0; p < NP; ++p) {
        weight[p] = (__m512bh)_mm512_loadu_si512(panel + (p * in + 2 * k) * kPanel);
      }
      for (int i = 0; i < MR; ++i) {
        int pair;
        std::memcpy(&pair, from + i * in + 2 * k, 4);
        const __m512bh value = (__m512bh)_mm512_set1_epi32(pair);
        for (int p = 0; p < NP; ++p) {
          acc[i][p].v = _mm512_dpbf16_ps(acc[i][p].v, value, weight[p]);
        }
      }
#else
      F32x16 even[NP], odd[NP];
      for (int p = 0; p < NP; ++p) load_pairs(panel + (p * in + 2 * k) * kPanel, even[p], odd[p]);
      for (int i = 0; i < MR; ++i) {
        const F32x16 first = splat16(widen(from[i * in + 2 * k]));
        const F32x16 second = splat16(widen(from[i * in + 2 * k + 1]));
        for (int p = 0; p < NP; ++p) acc[i][p] = fma(first, even[p], acc[i][p]);
        for (int p = 0; p < NP; ++p) acc[i][p] = fma(second, odd[p], acc[i][p]);
      }
#endif
    };
    block_of<MR, NP>(row, u * kUnit, in / 2, step, done);
  });
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
