// F32x16 in plain C++, for any processor. Included by simd.h alone, which says what may stand here.
#pragma once

#include "scalar_values.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

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

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
