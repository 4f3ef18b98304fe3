// F32x16: sixteen floats and the operations the kernels need, in the instruction set of this
// translation unit (PTD_ISA_LEVEL: 0 scalar, 1 avx2, 2 avx512, 3 avx512_bf16, 4 amx).
//
// Included only by the kernels_*.cpp files, each of which is compiled for another processor.
// Nothing here may use a template or inline function of the standard library: the linker keeps one
// copy of those for the whole program, and it might be the one with instructions that are not
// there.
#pragma once

#include <cstdint>
#include <cstring>

#if PTD_ISA_LEVEL > 0
#include <immintrin.h>
#endif

namespace ptd::cpu::PTD_ISA_NAMESPACE {

using bf16 = std::uint16_t;

template <typename A>
inline A min_of(A a, A b) {
  return b < a ? b : a;
}
template <typename A>
inline A max_of(A a, A b) {
  return a < b ? b : a;
}

// Begin and end of this thread's part of `n` equal pieces.
struct Range {
  std::int64_t begin, end;
};
inline Range share_of(std::int64_t n, int index, int count) {
  return {n * index / count, n * (index + 1) / count};
}

inline float bits_to_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline std::uint32_t float_to_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float widen(bf16 value) { return bits_to_float(static_cast<std::uint32_t>(value) << 16); }
inline float widen(float value) { return value; }

// Round to nearest, ties to even; NaN stays NaN. What torch does.
inline bf16 round_bf16(float value) {
  const std::uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16>((bits >> 16) | 0x40u);
  return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
template <typename T>
inline T narrow(float value);
template <>
inline float narrow<float>(float value) {
  return value;
}
template <>
inline bf16 narrow<bf16>(float value) {
  return round_bf16(value);
}

#if PTD_ISA_LEVEL >= 2

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

#elif PTD_ISA_LEVEL == 1

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

#else

struct F32x16 {
  float v[16];
};
#define PTD_EACH_LANE for (int l = 0; l < 16; ++l)
inline F32x16 splat16(float value) {
  F32x16 r;
  PTD_EACH_LANE r.v[l] = value;
  return r;
}
inline F32x16 zero16() { return splat16(0.0f); }
template <typename T>
inline F32x16 load16(const T* p) {
  F32x16 r;
  PTD_EACH_LANE r.v[l] = widen(p[l]);
  return r;
}
// Sixteen pairs: the first of each to `even`, the second to `odd`.
inline void load_pairs(const bf16* p, F32x16& even, F32x16& odd) {
  PTD_EACH_LANE {
    even.v[l] = widen(p[2 * l]);
    odd.v[l] = widen(p[2 * l + 1]);
  }
}
template <typename T>
inline F32x16 load16(const T* p, int n) {
  F32x16 r = zero16();
  for (int l = 0; l < n; ++l) r.v[l] = widen(p[l]);
  return r;
}
template <typename T>
inline void store16(T* p, F32x16 a) {
  PTD_EACH_LANE p[l] = narrow<T>(a.v[l]);
}
template <typename T>
inline void store16(T* p, F32x16 a, int n) {
  for (int l = 0; l < n; ++l) p[l] = narrow<T>(a.v[l]);
}
template <typename T>
inline F32x16 rounded16(F32x16 a) {
  PTD_EACH_LANE a.v[l] = widen(narrow<T>(a.v[l]));
  return a;
}
inline F32x16 add(F32x16 a, F32x16 b) {
  PTD_EACH_LANE a.v[l] += b.v[l];
  return a;
}
inline F32x16 sub(F32x16 a, F32x16 b) {
  PTD_EACH_LANE a.v[l] -= b.v[l];
  return a;
}
inline F32x16 mul(F32x16 a, F32x16 b) {
  PTD_EACH_LANE a.v[l] *= b.v[l];
  return a;
}
inline F32x16 div(F32x16 a, F32x16 b) {
  PTD_EACH_LANE a.v[l] /= b.v[l];
  return a;
}
// Two roundings: a fused one would be a library call where the processor has none.
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  PTD_EACH_LANE c.v[l] += a.v[l] * b.v[l];
  return c;
}
inline F32x16 max16(F32x16 a, F32x16 b) {
  PTD_EACH_LANE a.v[l] = a.v[l] > b.v[l] ? a.v[l] : b.v[l];
  return a;
}
inline F32x16 min16(F32x16 a, F32x16 b) {
  PTD_EACH_LANE a.v[l] = a.v[l] < b.v[l] ? a.v[l] : b.v[l];
  return a;
}
inline F32x16 round16(F32x16 a) {
  // Adding and taking away 1.5 * 2^23 rounds to nearest, ties to even, for |a| < 2^22.
  PTD_EACH_LANE a.v[l] = (a.v[l] + 12582912.0f) - 12582912.0f;
  return a;
}
inline F32x16 exp2_integer(F32x16 n) {
  // 1.5 * 2^23 + n holds n in its lowest bits. Converting it to int would be undefined for NaN.
  PTD_EACH_LANE n.v[l] = bits_to_float((float_to_bits(n.v[l] + 12582912.0f) + 127u) << 23);
  return n;
}
inline F32x16 times_exp2(F32x16 a, F32x16 n) { return mul(a, exp2_integer(n)); }
inline std::uint32_t less_mask(F32x16 a, F32x16 b) {
  std::uint32_t mask = 0;
  PTD_EACH_LANE mask |= static_cast<std::uint32_t>(a.v[l] < b.v[l]) << l;
  return mask;
}
inline std::uint32_t nan_mask(F32x16 a) {
  std::uint32_t mask = 0;
  PTD_EACH_LANE mask |= static_cast<std::uint32_t>(a.v[l] != a.v[l]) << l;
  return mask;
}
inline F32x16 blend(std::uint32_t mask, F32x16 a, F32x16 b) {
  PTD_EACH_LANE a.v[l] = (mask >> l & 1u) != 0 ? b.v[l] : a.v[l];
  return a;
}
struct F64x16 {
  double v[16];
};
inline F64x16 zero64() {
  F64x16 r;
  PTD_EACH_LANE r.v[l] = 0;
  return r;
}
inline F64x16 add(F64x16 a, F32x16 b) {
  PTD_EACH_LANE a.v[l] += static_cast<double>(b.v[l]);
  return a;
}
inline void store16(double* p, F64x16 a) { PTD_EACH_LANE p[l] = a.v[l]; }
#undef PTD_EACH_LANE

#endif

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
