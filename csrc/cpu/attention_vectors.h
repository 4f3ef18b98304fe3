// Vector operations of the attention kernels: folds over lanes, and keys turned so that lanes are
// keys.
#pragma once

#include "simd.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

// Four columns of 32 bits of sixteen rows: lane r of column[c] holds the bits of column c of row r.
struct Columns {
  F32x16 column[4];
};

#if PTD_ISA_LEVEL >= 2

// Both fold in halves, as sum16 does.
inline float fold_max16(F32x16 a) {
  __m512 v = _mm512_max_ps(a.v, _mm512_shuffle_f32x4(a.v, a.v, 0x4e));
  v = _mm512_max_ps(v, _mm512_shuffle_f32x4(v, v, 0xb1));
  v = _mm512_max_ps(v, _mm512_permute_ps(v, 0x4e));
  v = _mm512_max_ps(v, _mm512_permute_ps(v, 0xb1));
  return _mm512_cvtss_f32(v);
}
inline float fold_sum16(F32x16 a) {
  __m512 v = _mm512_add_ps(a.v, _mm512_shuffle_f32x4(a.v, a.v, 0x4e));
  v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xb1));
  v = _mm512_add_ps(v, _mm512_permute_ps(v, 0x4e));
  v = _mm512_add_ps(v, _mm512_permute_ps(v, 0xb1));
  return _mm512_cvtss_f32(v);
}

inline Columns columns_of(const void* first_row, std::int64_t row_bytes) {
  const auto* rows = static_cast<const unsigned char*>(first_row);
  const auto quarter = [&](int row) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + row * row_bytes));
  };
  // Quarter a of part[i] is row 4 a + i: broadcasts from memory, which need no shuffle unit.
  __m512i part[4];
  for (int i = 0; i < 4; ++i) {
    part[i] = _mm512_castsi128_si512(quarter(i));
    part[i] = _mm512_mask_broadcast_i32x4(part[i], 0x00f0, quarter(4 + i));
    part[i] = _mm512_mask_broadcast_i32x4(part[i], 0x0f00, quarter(8 + i));
    part[i] = _mm512_mask_broadcast_i32x4(part[i], 0xf000, quarter(12 + i));
  }
  const __m512i lo01 = _mm512_unpacklo_epi32(part[0], part[1]);
  const __m512i lo23 = _mm512_unpacklo_epi32(part[2], part[3]);
  const __m512i hi01 = _mm512_unpackhi_epi32(part[0], part[1]);
  const __m512i hi23 = _mm512_unpackhi_epi32(part[2], part[3]);
  return {{{_mm512_castsi512_ps(_mm512_unpacklo_epi64(lo01, lo23))},
           {_mm512_castsi512_ps(_mm512_unpackhi_epi64(lo01, lo23))},
           {_mm512_castsi512_ps(_mm512_unpacklo_epi64(hi01, hi23))},
           {_mm512_castsi512_ps(_mm512_unpackhi_epi64(hi01, hi23))}}};
}

// Lanes of 32 bits that hold two bf16: the lower, the upper.
inline F32x16 lower_bf16(F32x16 pairs) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs.v), 16))};
}
inline F32x16 upper_bf16(F32x16 pairs) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs.v), upper))};
}

#elif PTD_ISA_LEVEL == 1

inline float fold_max16(F32x16 a) {
  const __m256 v = _mm256_max_ps(a.lo, a.hi);
  __m128 w = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  w = _mm_max_ps(w, _mm_permute_ps(w, 0x4e));
  w = _mm_max_ps(w, _mm_permute_ps(w, 0xb1));
  return _mm_cvtss_f32(w);
}
inline float fold_sum16(F32x16 a) {
  const __m256 v = _mm256_add_ps(a.lo, a.hi);
  __m128 w = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  w = _mm_add_ps(w, _mm_permute_ps(w, 0x4e));
  w = _mm_add_ps(w, _mm_permute_ps(w, 0xb1));
  return _mm_cvtss_f32(w);
}

// The same of eight rows.
inline void columns_of8(const unsigned char* rows, std::int64_t row_bytes, __m256 column[4]) {
  const auto half = [&](int row) {
    return _mm_loadu_ps(reinterpret_cast<const float*>(rows + row * row_bytes));
  };
  __m256 part[4];  // half a of part[i] is row 4 a + i
  for (int i = 0; i < 4; ++i) {
    part[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(half(i)), half(4 + i), 1);
  }
  const __m256d lo01 = _mm256_castps_pd(_mm256_unpacklo_ps(part[0], part[1]));
  const __m256d lo23 = _mm256_castps_pd(_mm256_unpacklo_ps(part[2], part[3]));
  const __m256d hi01 = _mm256_castps_pd(_mm256_unpackhi_ps(part[0], part[1]));
  const __m256d hi23 = _mm256_castps_pd(_mm256_unpackhi_ps(part[2], part[3]));
  column[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(lo01, lo23));
  column[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(lo01, lo23));
  column[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(hi01, hi23));
  column[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(hi01, hi23));
}
inline Columns columns_of(const void* first_row, std::int64_t row_bytes) {
  const auto* rows = static_cast<const unsigned char*>(first_row);
  __m256 lo[4], hi[4];
  columns_of8(rows, row_bytes, lo);
  columns_of8(rows + 8 * row_bytes, row_bytes, hi);
  return {{{lo[0], hi[0]}, {lo[1], hi[1]}, {lo[2], hi[2]}, {lo[3], hi[3]}}};
}

inline __m256 lower_bf16(__m256 pairs) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
}
inline __m256 upper_bf16(__m256 pairs) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(pairs), upper));
}
inline F32x16 lower_bf16(F32x16 pairs) { return {lower_bf16(pairs.lo), lower_bf16(pairs.hi)}; }
inline F32x16 upper_bf16(F32x16 pairs) { return {upper_bf16(pairs.lo), upper_bf16(pairs.hi)}; }

#else

inline float fold_max16(F32x16 a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) a.v[l] = a.v[l] > a.v[l + half] ? a.v[l] : a.v[l + half];
  }
  return a.v[0];
}
inline float fold_sum16(F32x16 a) { return sum16(a); }

inline Columns columns_of(const void* first_row, std::int64_t row_bytes) {
  const auto* rows = static_cast<const unsigned char*>(first_row);
  Columns r;
  for (int row = 0; row < 16; ++row) {
    for (int c = 0; c < 4; ++c) std::memcpy(&r.column[c].v[row], rows + row * row_bytes + 4 * c, 4);
  }
  return r;
}
inline F32x16 lower_bf16(F32x16 pairs) {
  for (float& v : pairs.v) v = bits_to_float(float_to_bits(v) << 16);
  return pairs;
}
inline F32x16 upper_bf16(F32x16 pairs) {
  for (float& v : pairs.v) v = bits_to_float(float_to_bits(v) & 0xffff0000u);
  return pairs;
}

#endif

// Sixteen rows of `dim` elements as floats [dim][16].
inline void turn_keys(const float* rows, int dim, float* out) {
  for (int d = 0; d < dim; d += 4) {
    const Columns columns = columns_of(rows + d, static_cast<std::int64_t>(dim) * 4);
    for (int c = 0; c < 4; ++c) store16(out + (d + c) * 16, columns.column[c]);
  }
}
inline void turn_keys(const bf16* rows, int dim, float* out) {
  for (int d = 0; d < dim; d += 8) {
    const Columns columns = columns_of(rows + d, static_cast<std::int64_t>(dim) * 2);
    for (int c = 0; c < 4; ++c) {
      store16(out + (d + 2 * c) * 16, lower_bf16(columns.column[c]));
      store16(out + (d + 2 * c + 1) * 16, upper_bf16(columns.column[c]));
    }
  }
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
