// int8 weights times inputs that are quantised row by row, in groups. A group's sum is an exact
// integer; the groups are added in order, in fp32.
#pragma once

#include "linear_layout.h"
#include "linear_vectors.h"
#include "simd.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

// Quantised inputs in the form that the dot product reads:
//   amx, scalar    int8
//   avx512_bf16    q + 128 as unsigned, for VNNI; 128 times the weights' sum is taken off again
//   avx2, avx512   int16, each four as (0, 2, 1, 3), to meet the even and the odd bytes of a weight
#if PTD_ISA_LEVEL == 1 || PTD_ISA_LEVEL == 2
inline constexpr int kInt8InputBytes = 2;
#else
inline constexpr int kInt8InputBytes = 1;
#endif

// Sixteen quantised inputs, from the k-th of a row on.
inline void store_quantized(unsigned char* row, std::int64_t k, const float* q) {
  for (int l = 0; l < 16; ++l) {
    const int value = static_cast<int>(q[l]);
#if PTD_ISA_LEVEL == 3
    row[k + l] = static_cast<unsigned char>(value + 128);
#elif PTD_ISA_LEVEL == 1 || PTD_ISA_LEVEL == 2
    constexpr int kPlace[4] = {0, 2, 1, 3};
    const std::int16_t wide = static_cast<std::int16_t>(value);
    std::memcpy(row + 2 * (k + (l & ~3) + kPlace[l & 3]), &wide, 2);
#else
    row[k + l] = static_cast<unsigned char>(static_cast<std::int8_t>(value));
#endif
  }
}

// Quantises a row, kInt8Group inputs at a time: q = round(x / scale), |q| <= 127. A group that
// holds NaN or infinity gets the scale NaN, which reaches every output.
template <typename T>
inline void quantize_row(const T* x, std::int64_t in, std::int64_t padded, unsigned char* to,
                         float* scales) {
  for (std::int64_t begin = 0; begin < padded; begin += kInt8Group) {
    const int n =
        static_cast<int>(max_of<std::int64_t>(0, min_of<std::int64_t>(kInt8Group, in - begin)));
    F32x16 values[kInt8Group / 16];
    F32x16 top = zero16();
    std::uint32_t bad = 0;
    for (int v = 0; v < kInt8Group / 16; ++v) {
      const int left = n - 16 * v;
      values[v] = left <= 0 ? zero16() : load16(x + begin + 16 * v, min_of(16, left));
      bad |= nan_mask(values[v]);
      top = max16(max16(values[v], sub(zero16(), values[v])), top);
    }
    const float largest = largest16(top);
    const bool finite = bad == 0 && largest <= 3.4028235e38f;
    scales[begin / kInt8Group] = finite ? largest / 127.0f : bits_to_float(0x7fc00000u);
    const F32x16 inverse = splat16(finite && largest > 1e-30f ? 127.0f / largest : 0.0f);
    for (int v = 0; v < kInt8Group / 16; ++v) {
      float q[16] = {};
      if (finite) {
        const F32x16 scaled = mul(values[v], inverse);
        store16(q, round16(max16(min16(scaled, splat16(127.0f)), splat16(-127.0f))));
      }
      store_quantized(to, begin + 16 * v, q);
    }
  }
}

#if PTD_ISA_LEVEL >= 2
struct I32x16 {
  __m512i v;
};
inline I32x16 zero_i16() { return {_mm512_setzero_si512()}; }
inline F32x16 to_float(const I32x16& a) { return {_mm512_cvtepi32_ps(a.v)}; }
#elif PTD_ISA_LEVEL == 1
struct I32x16 {
  __m256i lo, hi;
};
inline I32x16 zero_i16() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline F32x16 to_float(const I32x16& a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
#else
struct I32x16 {
  std::int32_t v[16];
};
inline I32x16 zero_i16() { return {}; }
inline F32x16 to_float(const I32x16& a) {
  F32x16 r;
  for (int l = 0; l < 16; ++l) r.v[l] = static_cast<float>(a.v[l]);
  return r;
}
#endif

// Adds to each lane the product of four inputs with the lane's four weights.
#if PTD_ISA_LEVEL >= 3
struct WeightQuad {
  __m512i v;
};
inline WeightQuad load_quad(const std::int8_t* w) { return {_mm512_loadu_si512(w)}; }
inline void add_quad(I32x16& acc, const unsigned char* x, const WeightQuad& w) {
  int quad;
  std::memcpy(&quad, x, 4);
  acc.v = _mm512_dpbusd_epi32(acc.v, _mm512_set1_epi32(quad), w.v);
}
#elif PTD_ISA_LEVEL == 2
struct WeightQuad {
  __m512i even, odd;
};
inline WeightQuad load_quad(const std::int8_t* w) {
  const __m512i raw = _mm512_loadu_si512(w);
  return {_mm512_srai_epi16(_mm512_slli_epi16(raw, 8), 8), _mm512_srai_epi16(raw, 8)};
}
inline void add_quad(I32x16& acc, const unsigned char* x, const WeightQuad& w) {
  int even, odd;
  std::memcpy(&even, x, 4);
  std::memcpy(&odd, x + 4, 4);
  acc.v = _mm512_add_epi32(acc.v, _mm512_madd_epi16(w.even, _mm512_set1_epi32(even)));
  acc.v = _mm512_add_epi32(acc.v, _mm512_madd_epi16(w.odd, _mm512_set1_epi32(odd)));
}
#elif PTD_ISA_LEVEL == 1
struct WeightQuad {
  __m256i even[2], odd[2];
};
inline WeightQuad load_quad(const std::int8_t* w) {
  WeightQuad r;
  for (int h = 0; h < 2; ++h) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32 * h));
    r.even[h] = _mm256_srai_epi16(_mm256_slli_epi16(raw, 8), 8);
    r.odd[h] = _mm256_srai_epi16(raw, 8);
  }
  return r;
}
inline void add_quad(I32x16& acc, const unsigned char* x, const WeightQuad& w) {
  int even, odd;
  std::memcpy(&even, x, 4);
  std::memcpy(&odd, x + 4, 4);
  const __m256i e = _mm256_set1_epi32(even), o = _mm256_set1_epi32(odd);
  acc.lo = _mm256_add_epi32(acc.lo, _mm256_madd_epi16(w.even[0], e));
  acc.hi = _mm256_add_epi32(acc.hi, _mm256_madd_epi16(w.even[1], e));
  acc.lo = _mm256_add_epi32(acc.lo, _mm256_madd_epi16(w.odd[0], o));
  acc.hi = _mm256_add_epi32(acc.hi, _mm256_madd_epi16(w.odd[1], o));
}
#else
struct WeightQuad {
  const std::int8_t* w;
};
inline WeightQuad load_quad(const std::int8_t* w) { return {w}; }
inline void add_quad(I32x16& acc, const unsigned char* x, const WeightQuad& w) {
  for (int l = 0; l < 16; ++l) {
    for (int j = 0; j < 4; ++j) {
      acc.v[l] += static_cast<std::int8_t>(x[j]) * w.w[4 * l + j];
    }
  }
}
#endif

template <typename Done>
inline void vector_units_int8(const unsigned char* x, const float* row_scales, int rows,
                              const LinearWeight& w, Range units, const Done& done) {
  const std::int64_t in = w.in_padded, groups = in / kInt8Group;
  const auto* panels = static_cast<const std::int8_t*>(w.panels);
  blocks_of_units(rows, units, [&](auto mr, auto np, int row, std::int64_t u) {
    constexpr int MR = decltype(mr)::value, NP = decltype(np)::value;
    const unsigned char* from = x + row * in * kInt8InputBytes;
    const std::int8_t* panel = panels + u * 2 * kPanel * in;
    F32x16 total[MR][NP];
    for (int i = 0; i < MR; ++i) {
      for (int p = 0; p < NP; ++p) total[i][p] = zero16();
    }
    for (std::int64_t g = 0; g < groups; ++g) {
      I32x16 sum[MR][NP];
      for (int i = 0; i < MR; ++i) {
        for (int p = 0; p < NP; ++p) sum[i][p] = zero_i16();
      }
#if PTD_ISA_LEVEL >= 3
      __m512i offset[NP];  // the weights' own sums
      for (int p = 0; p < NP; ++p) offset[p] = _mm512_setzero_si512();
#endif
      for (std::int64_t k = g * kInt8Group; k < (g + 1) * kInt8Group; k += 4) {
        WeightQuad weight[NP];
        for (int p = 0; p < NP; ++p) {
          weight[p] = load_quad(panel + (p * in + k) * kPanel);
#if PTD_ISA_LEVEL >= 3
          offset[p] = _mm512_dpbusd_epi32(offset[p], _mm512_set1_epi8(1), weight[p].v);
#endif
        }
        for (int i = 0; i < MR; ++i) {
          for (int p = 0; p < NP; ++p) {
            add_quad(sum[i][p], from + (i * in + k) * kInt8InputBytes, weight[p]);
          }
        }
      }
      for (int i = 0; i < MR; ++i) {
        const F32x16 scale = splat16(row_scales[(row + i) * groups + g]);
        for (int p = 0; p < NP; ++p) {
#if PTD_ISA_LEVEL >= 3
          sum[i][p].v = _mm512_sub_epi32(sum[i][p].v, _mm512_slli_epi32(offset[p], 7));
#endif
          total[i][p] = fma(scale, to_float(sum[i][p]), total[i][p]);
        }
      }
    }
    float block[MR * kUnit];
    for (int half = 0; half < NP; half += 2) {
      for (int i = 0; i < MR; ++i) {
        for (int p = 0; p < 2; ++p) {
          const std::int64_t column = u * kUnit + (half + p) * kPanel;
          store16(block + i * kUnit + p * kPanel,
                  mul(total[i][half + p], load16(w.scales + column)));
        }
      }
      done(row, MR, u * kUnit + half * kPanel, block);
    }
  });
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
