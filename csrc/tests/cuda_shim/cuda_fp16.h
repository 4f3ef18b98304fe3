// Stands in for CUDA's header of this name.
#pragma once

#include <cmath>
#include <cstdint>

struct __half {
  std::uint16_t bits;
};

inline float __half2float(__half value) {
  const int exponent = value.bits >> 10 & 31, fraction = value.bits & 1023;
  float wide = exponent == 0    ? std::ldexp(static_cast<float>(fraction), -24)
               : exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                                : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return value.bits >> 15 != 0 ? -wide : wide;
}

inline __half __float2half_rn(float value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return {0x7fff};
  const float size = std::fabs(value);
  if (size >= 65520.0f) return {static_cast<std::uint16_t>(sign | 0x7c00)};
  // nearbyint rounds halves to even, as the conversion does. Below 2^-14 the steps stay alike.
  int exponent = -13;
  if (size >= 6.103515625e-5f) std::frexp(size, &exponent);  // size = f * 2^exponent, f in [0.5, 1)
  const int fraction = static_cast<int>(std::nearbyint(std::ldexp(size, 11 - exponent)));
  const int bits = (exponent + 13) * 1024 + fraction;
  return {static_cast<std::uint16_t>(sign | bits)};
}
