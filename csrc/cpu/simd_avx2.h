// F32x16 in AVX2 with FMA. Included by simd.h alone, which says what may stand here.
#pragma once

#include <immintrin.h>

#include "scalar_values.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

struct F32x16 {
  __m256 lo, hi;
};
inline F32x16 zero16() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F32x16 splat16(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline F32x16 load16(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline __m256 widen8(__m128i raw) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
inline F32x16 load16(const bf16* p) {
  return {widen8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          widen8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
// Sixteen pairs: the first of each to `even`, the second to `odd`.
inline void load_pairs(const bf16* p, F32x16& even, F32x16& odd) {
  const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  const __m256i upper = _mm256_set1_epi32(~0xffff);
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(lo, upper)),
         _mm256_castsi256_ps(_mm256_and_si256(hi, upper))};
}
template <typename T>
inline F32x16 load16(const T* p, int n) {
  T held[16] = {};
  for (int i = 0; i < n; ++i) held[i] = p[i];
  return load16(held);
}
inline void store16(float* p, F32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline __m256i bf16_in_upper_half(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  return _mm256_blendv_epi8(rounded, quiet, nan);
}
inline __m128i round8_bf16(__m256 v) {
  const __m256i high = _mm256_srli_epi32(bf16_in_upper_half(v), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}
template <typename T>
inline F32x16 rounded16(F32x16 a) {
  if constexpr (sizeof(T) == sizeof(float)) return a;
  const __m256i upper = _mm256_set1_epi32(~0xffff);
  return {_mm256_castsi256_ps(_mm256_and_si256(bf16_in_upper_half(a.lo), upper)),
          _mm256_castsi256_ps(_mm256_and_si256(bf16_in_upper_half(a.hi), upper))};
}
inline void store16(bf16* p, F32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), round8_bf16(a.lo));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), round8_bf16(a.hi));
}
template <typename T>
inline void store16(T* p, F32x16 a, int n) {
  T held[16];
  store16(held, a);
  for (int i = 0; i < n; ++i) p[i] = held[i];
}
inline F32x16 add(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline F32x16 sub(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline F32x16 mul(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline F32x16 div(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline F32x16 max16(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline F32x16 min16(F32x16 a, F32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline F32x16 round16(F32x16 a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
inline __m256 exp2_integer8(__m256 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
inline F32x16 exp2_integer(F32x16 n) { return {exp2_integer8(n.lo), exp2_integer8(n.hi)}; }
inline F32x16 times_exp2(F32x16 a, F32x16 n) { return mul(a, exp2_integer(n)); }
inline std::uint32_t lane_bits(__m256 lo, __m256 hi) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(lo)) |
         static_cast<std::uint32_t>(_mm256_movemask_ps(hi)) << 8;
}
inline std::uint32_t less_mask(F32x16 a, F32x16 b) {
  return lane_bits(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ));
}
inline std::uint32_t nan_mask(F32x16 a) {
  return lane_bits(_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q),
                   _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q));
}
inline __m256 blend8(std::uint32_t mask, __m256 a, __m256 b) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i on = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), lane);
  return _mm256_blendv_ps(a, b, _mm256_castsi256_ps(_mm256_cmpeq_epi32(on, lane)));
}
inline F32x16 blend(std::uint32_t mask, F32x16 a, F32x16 b) {
  return {blend8(mask & 0xffu, a.lo, b.lo), blend8(mask >> 8 & 0xffu, a.hi, b.hi)};
}

struct F64x16 {
  __m256d part[4];
};
inline F64x16 zero64() {
  const __m256d zero = _mm256_setzero_pd();
  return {{zero, zero, zero, zero}};
}
inline F64x16 add(F64x16 a, F32x16 b) {
  const auto wide = [](__m128 v) { return _mm256_cvtps_pd(v); };
  return {{_mm256_add_pd(a.part[0], wide(_mm256_castps256_ps128(b.lo))),
           _mm256_add_pd(a.part[1], wide(_mm256_extractf128_ps(b.lo, 1))),
           _mm256_add_pd(a.part[2], wide(_mm256_castps256_ps128(b.hi))),
           _mm256_add_pd(a.part[3], wide(_mm256_extractf128_ps(b.hi, 1)))}};
}
inline void store16(double* p, F64x16 a) {
  for (int i = 0; i < 4; ++i) _mm256_storeu_pd(p + 4 * i, a.part[i]);
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
