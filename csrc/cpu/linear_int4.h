// int4 weights: widened to bf16, one unit at a time, and multiplied as such.
#pragma once

#include "linear_layout.h"
#include "simd.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

// The values q * scale + minimum of a unit, rounded to bf16, in the layout of two bf16 panels.
inline void widen_int4_unit(const unsigned char* unit, std::int64_t in, bf16* to) {
  const std::int64_t blocks = in / kInt4Group;
  for (int p = 0; p < 2; ++p) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      const unsigned char* block = unit + (p * blocks + b) * kInt4BlockBytes;
      F32x16 scale = load16(reinterpret_cast<const bf16*>(block));
      F32x16 minimum = load16(reinterpret_cast<const bf16*>(block) + kPanel);
      const unsigned char* nibbles = block + 4 * kPanel;
      bf16* out = to + (p * in + b * kInt4Group) * kPanel;
      for (int j = 0; j < kInt4Group / 2; ++j, nibbles += kPanel, out += 2 * kPanel) {
#if PTD_ISA_LEVEL >= 2
        const __m512i q =
            _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(nibbles)));
        const __m512 low = _mm512_cvtepi32_ps(_mm512_and_si512(q, _mm512_set1_epi32(15)));
        const __m512 high = _mm512_cvtepi32_ps(_mm512_srli_epi32(q, 4));
        const F32x16 even = fma({low}, scale, minimum), odd = fma({high}, scale, minimum);
        const __m512i lo = _mm512_cvtepu16_epi32(round16_bf16(even.v));
        const __m512i hi = _mm512_cvtepu16_epi32(round16_bf16(odd.v));
        _mm512_storeu_si512(out, _mm512_or_si512(lo, _mm512_slli_epi32(hi, 16)));
#else
        float low[16], high[16];
        for (int l = 0; l < 16; ++l) {
          low[l] = static_cast<float>(nibbles[l] & 15);
          high[l] = static_cast<float>(nibbles[l] >> 4);
        }
        bf16 even[16], odd[16];
        store16(even, fma(load16(low), scale, minimum));
        store16(odd, fma(load16(high), scale, minimum));
        for (int l = 0; l < 16; ++l) {
          out[2 * l] = even[l];
          out[2 * l + 1] = odd[l];
        }
#endif
      }
    }
  }
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
