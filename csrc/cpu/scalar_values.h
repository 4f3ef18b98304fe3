// Single floats and bfloat16s, and the cut of work into shares, for the kernels of one instruction
// set. As for simd.h: nothing of the standard library but its C functions.
#pragma once

#include <cstdint>
#include <cstring>

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

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
