// F32x16: sixteen floats and the operations the kernels need, in the instruction set of this
// translation unit (PTD_ISA_LEVEL: 0 scalar, 1 avx2, 2 avx512, 3 avx512_bf16, 4 amx).
//
// Included only by the kernels_*.cpp files, each of which is compiled for another processor.
// Nothing here may use a template or inline function of the standard library: the linker keeps one
// copy of those for the whole program, and it might be the one with instructions that are not
// there.
#pragma once

#include <cstdint>

#include "scalar_values.h"
#if PTD_ISA_LEVEL >= 2
#include "simd_avx512.h"
#elif PTD_ISA_LEVEL == 1
#include "simd_avx2.h"
#else
#include "simd_scalar.h"
#endif

namespace ptd::cpu::PTD_ISA_NAMESPACE {

#if PTD_ISA_LEVEL < 2
inline void store32(bf16* p, F32x16 lo, F32x16 hi) {
  store16(p, lo);
  store16(p + 16, hi);
}
#endif
inline void store32(float* p, F32x16 lo, F32x16 hi) {
  store16(p, lo);
  store16(p + 16, hi);
}

// Lanes folded in halves: 16 -> 8 -> 4 -> 2 -> 1, always in this order.
inline float sum16(F32x16 a) {
  float v[16];
  store16(v, a);
  for (int half = 8; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) v[l] += v[l + half];
  }
  return v[0];
}
inline double sum16(F64x16 a) {  // in the same order
  double v[16];
  store16(v, a);
  for (int half = 8; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) v[l] += v[l + half];
  }
  return v[0];
}
inline float largest16(F32x16 a) {  // NaN lanes are passed over
  float v[16];
  store16(v, a);
  float best = v[0];
  for (int l = 1; l < 16; ++l) best = v[l] > best || best != best ? v[l] : best;
  return best;
}

// exp(x) for x <= 88, within 2 units in the last place; exactly 1 at 0; below -87.3 it is 0. NaN
// passes through everything here (max16 and min16 give their second argument).
inline F32x16 exp16(F32x16 x) {
  const F32x16 lowest = splat16(-87.33654f);
  const std::uint32_t gone = less_mask(x, lowest);
  const F32x16 bounded = max16(lowest, min16(splat16(88.0f), x));
  const F32x16 n = round16(mul(bounded, splat16(1.44269504f)));  // x / ln 2
  // x - n ln 2, with ln 2 in two parts: the first has few bits, so that its product is exact.
  F32x16 r = fma(n, splat16(-0.693359375f), bounded);
  r = fma(n, splat16(2.12194440e-4f), r);
  // The Taylor series to r^7: |r| <= ln(2) / 2, so what is cut off is below 6e-9.
  F32x16 p = splat16(1.0f / 5040);
  p = fma(p, r, splat16(1.0f / 720));
  p = fma(p, r, splat16(1.0f / 120));
  p = fma(p, r, splat16(1.0f / 24));
  p = fma(p, r, splat16(1.0f / 6));
  p = fma(p, r, splat16(0.5f));
  p = add(fma(p, mul(r, r), r), splat16(1.0f));
  return blend(gone, times_exp2(p, n), zero16());
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
