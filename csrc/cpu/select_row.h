// One row of logits as a distribution: the mass of an id, and the draw of an id.
//
// mass = exp((x - peak) / temperature) in fp32, at most 1. Masses are summed in double: those of a
// block of ids in sixteen lanes, the blocks one after the other. A draw finds its block by these
// sums and its id by adding the block's masses one by one, so two passes over the row (the peak,
// the masses) and a second look at one block draw exactly, with nothing stored but the blocks'
// sums.
#pragma once

#include <cstdint>

#include "select_layout.h"
#include "simd.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

struct LogitRow {
  const float* logits;
  std::int64_t vocab;
  float peak;
  float inverse_heat;  // 1 / temperature, finite
};

// The ids that a filter keeps: better than `logit`, or equal to it and not above `id`, and of at
// least `least_mass`.
struct Kept {
  float logit;
  std::int64_t id;
  float least_mass;
};

inline float largest_of(const float* x, std::int64_t n) {
  const float lowest = bits_to_float(0xff800000u);  // minus infinity
  F32x16 best[4] = {splat16(lowest), splat16(lowest), splat16(lowest), splat16(lowest)};
  std::int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int k = 0; k < 4; ++k) best[k] = max16(best[k], load16(x + i + 16 * k));
  }
  float largest = largest16(max16(max16(best[0], best[1]), max16(best[2], best[3])));
  for (; i < n; ++i) largest = max_of(largest, x[i]);
  return largest;
}

inline LogitRow logit_row(const float* logits, std::int64_t vocab, float temperature) {
  // A temperature below 3e-39 has no finite inverse, and 0 * infinity would be NaN.
  const float inverse = min_of(1.0f / temperature, 3e38f);
  return {logits, vocab, largest_of(logits, vocab), inverse};
}

// Exponents of the `lanes` (1..16) ids from i on; minus infinity in the other lanes.
inline F32x16 exponents16(const LogitRow& row, std::int64_t i, int lanes) {
  const F32x16 x = lanes == 16 ? load16(row.logits + i) : load16(row.logits + i, lanes);
  const F32x16 exponent = mul(sub(x, splat16(row.peak)), splat16(row.inverse_heat));
  if (lanes == 16) return exponent;
  return blend((1u << lanes) - 1u, splat16(bits_to_float(0xff800000u)), exponent);
}

// Masses of those ids; 0 of an id that is filtered out, and in the other lanes.
template <bool kFilter>
inline F32x16 masses16(const LogitRow& row, const Kept& kept, std::int64_t i, int lanes) {
  const F32x16 mass = exp16(exponents16(row, i, lanes));
  if constexpr (kFilter) {
    const F32x16 x = lanes == 16 ? load16(row.logits + i) : load16(row.logits + i, lanes);
    const F32x16 limit = splat16(kept.logit);
    const std::int64_t ahead = kept.id - i;  // this many lanes after the first may equal the limit
    const std::uint32_t may_equal = ahead < 0 ? 0 : ahead > 15 ? 0xffffu : (2u << ahead) - 1u;
    const std::uint32_t in = less_mask(limit, x) | (~less_mask(x, limit) & may_equal);
    return blend(in & ~less_mask(mass, splat16(kept.least_mass)), zero16(), mass);
  }
  return mass;
}

// Running sums of the masses at the end of every block, to `ends`; returns the last.
template <bool kFilter>
inline double sum_blocks(const LogitRow& row, const Kept& kept, double* ends) {
  double total = 0;
  for (std::int64_t begin = 0, b = 0; begin < row.vocab; begin += kSelectBlock, ++b) {
    const std::int64_t end = min_of(begin + kSelectBlock, row.vocab);
    F64x16 sums = zero64();
    std::int64_t i = begin;
    for (; i + 16 <= end; i += 16) sums = add(sums, masses16<kFilter>(row, kept, i, 16));
    if (i < end) sums = add(sums, masses16<kFilter>(row, kept, i, static_cast<int>(end - i)));
    ends[b] = total += sum16(sums);
  }
  return total;
}

// The first id whose cumulative mass exceeds uniform * total. `ends` is working memory.
template <bool kFilter>
inline std::int64_t draw(const LogitRow& row, const Kept& kept, float uniform, double* ends) {
  const double threshold = uniform * sum_blocks<kFilter>(row, kept, ends);
  const std::int64_t blocks = (row.vocab + kSelectBlock - 1) / kSelectBlock;
  std::int64_t b = 0;  // the block that exceeds it, else the last one with any mass
  double sum = 0;      // before that block
  double before = 0;
  for (std::int64_t at = 0; at < blocks; before = ends[at++]) {
    if (!(ends[at] > before)) continue;
    b = at;
    sum = before;
    if (ends[at] > threshold) break;
  }
  const std::int64_t end = min_of((b + 1) * kSelectBlock, row.vocab);
  // The order of addition differs from the lanes', so the last sum may miss the block's end, and
  // with it the threshold, by a rounding: the last id with any mass is meant then.
  std::int64_t last = 0;
  for (std::int64_t i = b * kSelectBlock; i < end; i += 16) {
    const int lanes = static_cast<int>(min_of<std::int64_t>(end - i, 16));
    float mass[16];
    store16(mass, masses16<kFilter>(row, kept, i, lanes));
    for (int l = 0; l < lanes; ++l) {
      if (!(mass[l] > 0)) continue;
      last = i + l;
      sum += static_cast<double>(mass[l]);
      if (sum > threshold) return last;
    }
  }
  return last;
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
