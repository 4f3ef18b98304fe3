// F32x16 in AVX-512. Included by simd.h alone, which says what may stand here.
#pragma once

#include <immintrin.h>

#include "scalar_values.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

struct F32x16 {
  __m512 v;
};
inline F32x16 zero16() { return {_mm512_setzero_ps()}; }
inline F32x16 splat16(float value) { return {_mm512_set1_ps(value)}; }
inline F32x16 load16(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F32x16 load16(const bf16* p) {
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
// Sixteen pairs: the first of each to `even`, the second to `odd`.
inline void load_pairs(const bf16* p, F32x16& even, F32x16& odd) {
  const __m512i raw = _mm512_loadu_si512(p);
  even.v = _mm512_castsi512_ps(_mm512_slli_epi32(raw, 16));
  odd.v = _mm512_castsi512_ps(_mm512_and_si512(raw, _mm512_set1_epi32(~0xffff)));
}
inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
// The first n (0..16) lanes; the others are zero and their memory is not touched.
inline F32x16 load16(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline F32x16 load16(const bf16* p, int n) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n), p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
#if PTD_ISA_LEVEL >= 3
// The instruction takes numbers below 2^-126 for zero; other levels keep them.
inline __m256i round16_bf16(__m512 v) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)); }
#else
inline __m256i round16_bf16(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(quiet, 16));
}
#endif
// The lanes as T holds them.
template <typename T>
inline F32x16 rounded16(F32x16 a) {
  if constexpr (sizeof(T) == sizeof(float)) return a;
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(round16_bf16(a.v)), 16))};
}
inline void store16(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
inline void store16(bf16* p, F32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round16_bf16(a.v));
}
inline void store16(float* p, F32x16 a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
inline void store16(bf16* p, F32x16 a, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), round16_bf16(a.v));
}
// Two vectors side by side: one store, which is a whole line where p is aligned to 64 bytes.
inline void store32(bf16* p, F32x16 lo, F32x16 hi) {
  const __m512i both =
      _mm512_inserti64x4(_mm512_castsi256_si512(round16_bf16(lo.v)), round16_bf16(hi.v), 1);
  _mm512_storeu_si512(p, both);
}
inline F32x16 add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32x16 sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32x16 mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32x16 div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The larger; b where either is NaN.
inline F32x16 max16(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32x16 min16(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F32x16 round16(F32x16 a) {  // to the nearest integer, ties to even
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for integral n in [-126, 127].
inline F32x16 exp2_integer(F32x16 n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}
// a * 2^n for integral n in [-126, 127].
inline F32x16 times_exp2(F32x16 a, F32x16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// Bit l: lane l of a is less than lane l of b.
inline std::uint32_t less_mask(F32x16 a, F32x16 b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ);
}
inline std::uint32_t nan_mask(F32x16 a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q); }
// b where the mask's bit is set, else a.
inline F32x16 blend(std::uint32_t mask, F32x16 a, F32x16 b) {
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(mask), a.v, b.v)};
}

// Sixteen sums in double.
struct F64x16 {
  __m512d lo, hi;
};
inline F64x16 zero64() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
inline F64x16 add(F64x16 a, F32x16 b) {
  return {_mm512_add_pd(a.lo, _mm512_cvtps_pd(_mm512_castps512_ps256(b.v))),
          _mm512_add_pd(a.hi, _mm512_cvtps_pd(_mm512_extractf32x8_ps(b.v, 1)))};
}
inline void store16(double* p, F64x16 a) {
  _mm512_storeu_pd(p, a.lo);
  _mm512_storeu_pd(p + 8, a.hi);
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
