// Where top_k and top_p end: the last id that they keep, in the order of falling logits (equal
// logits: rising ids).
//
// The row is not sorted. Ids are gathered ring by ring, from the peak outwards, until the ring that
// holds the end has been reached; in it the end is found by 256 bins of counts and masses, and in
// its bin by 256 finer ones. A ring is one pass over the row; the first is enough as a rule, and
// holds some hundreds of ids where a model is sure of anything at all.
#pragma once

#include <cstdint>

#include "select_row.h"
#include "simd.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

// Rings end at these exponents; below the last every mass is 0 and no id is ever drawn.
inline constexpr float kRingEnds[] = {-8.0f, -16.0f, -87.4f};

// A larger key is the better id: the logit in the upper half, the complement of the id in the
// lower.
inline std::uint64_t key_of(float logit, std::int64_t id) {
  const std::uint32_t bits = float_to_bits(logit + 0.0f);  // of -0 and 0 the same
  const std::uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<std::uint64_t>(ordered) << 32 | (0xffffffffu - static_cast<std::uint32_t>(id));
}
inline std::int64_t id_of(std::uint64_t key) {
  return 0xffffffffu - static_cast<std::uint32_t>(key);
}
inline float logit_of(std::uint64_t key) {
  const std::uint32_t ordered = static_cast<std::uint32_t>(key >> 32);
  return bits_to_float((ordered >> 31) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

// How many ids, and how much mass.
struct Amount {
  double count, mass;
};
inline Amount sum_of(Amount a, Amount b) { return {a.count + b.count, a.mass + b.mass}; }
inline bool reaches(Amount a, Amount limit) {
  return a.count >= limit.count || a.mass >= limit.mass;
}

struct Candidates {
  std::uint64_t* keys;
  float* masses;
  std::int64_t n;
};

// The ids with an exponent in [low, high).
inline Amount gather_ring(const LogitRow& row, float low, float high, Candidates& found) {
  found.n = 0;
  double total = 0;
  for (std::int64_t i = 0; i < row.vocab; i += 16) {
    const int lanes = static_cast<int>(min_of<std::int64_t>(row.vocab - i, 16));
    const F32x16 exponent = exponents16(row, i, lanes);
    std::uint32_t in = ~less_mask(exponent, splat16(low)) & less_mask(exponent, splat16(high));
    if (in == 0) continue;
    float mass[16];
    store16(mass, exp16(exponent));
    for (; in != 0; in &= in - 1) {
      const int l = __builtin_ctz(in);
      found.keys[found.n] = key_of(row.logits[i + l], i + l);
      found.masses[found.n++] = mass[l];
      total += static_cast<double>(mass[l]);
    }
  }
  return {static_cast<double>(found.n), total};
}

// The key at which `before` and the candidates, the best first, reach the limit; the worst one if
// they never do. Adds to `before` all up to that key. Rearranges the candidates, at least one.
inline std::uint64_t find_end(Candidates in, Amount limit, Amount& before) {
  while (in.n > 1) {
    std::uint64_t lowest = in.keys[0], highest = in.keys[0];
    for (std::int64_t i = 1; i < in.n; ++i) {
      lowest = min_of(lowest, in.keys[i]);
      highest = max_of(highest, in.keys[i]);
    }
    const int bits = 64 - __builtin_clzll(highest - lowest);  // keys differ, so this is above 0
    const int shift = max_of(bits - 8, 0);
    Amount bins[256] = {};
    for (std::int64_t i = 0; i < in.n; ++i) {
      Amount& bin = bins[(in.keys[i] - lowest) >> shift];
      bin.count += 1;
      bin.mass += static_cast<double>(in.masses[i]);
    }
    // The lowest key is in bin 0, so the last bin looked at is never empty.
    std::uint64_t end = (highest - lowest) >> shift;
    for (; end > 0 && !reaches(sum_of(before, bins[end]), limit); --end) {
      before = sum_of(before, bins[end]);
    }
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < in.n; ++i) {
      if ((in.keys[i] - lowest) >> shift != end) continue;
      in.keys[kept] = in.keys[i];
      in.masses[kept++] = in.masses[i];
    }
    in.n = kept;
  }
  before = sum_of(before, {1.0, static_cast<double>(in.masses[0])});
  return in.keys[0];
}

// Whether the row's ids reach the limit, the best first. If so, `last` is the id that does.
// `reached` is what the ids up to it amount to, or all ids with any mass.
inline bool find_last(const LogitRow& row, Amount limit, Candidates memory, std::uint64_t& last,
                      Amount& reached) {
  reached = {0.0, 0.0};
  float high = 1.0f;
  for (const float low : kRingEnds) {
    const Amount ring = gather_ring(row, low, high, memory);
    if (memory.n > 0 && reaches(sum_of(reached, ring), limit)) {
      last = find_end(memory, limit, reached);
      return true;
    }
    reached = sum_of(reached, ring);
    high = low;
  }
  return false;
}

// What top_k, top_p and min_p (`sampling`) keep, in this order.
inline Kept kept_ids(const LogitRow& row, const float* sampling, Candidates memory, double* ends) {
  const float top_k = sampling[0], top_p = sampling[1], min_p = sampling[2];
  const double unlimited = 1e300;
  // The largest mass is exactly 1, so min_p is a mass.
  Kept kept = {bits_to_float(0xff800000u), row.vocab, min_of(min_p, 1.0f)};
  Amount limit = {unlimited, unlimited}, reached{};
  std::uint64_t last = 0;
  bool ends_early = false;
  if (top_k > 0) {
    limit.count = static_cast<double>(top_k);
    ends_early = find_last(row, limit, memory, last, reached);
  }
  if (top_p < 1) {
    const double total = top_k > 0 ? reached.mass : sum_blocks<false>(row, kept, ends);
    limit.mass = static_cast<double>(top_p) * total;
    ends_early = find_last(row, limit, memory, last, reached) || ends_early;
  }
  if (ends_early) {
    kept.logit = logit_of(last);
    kept.id = id_of(last);
  }
  return kept;
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
