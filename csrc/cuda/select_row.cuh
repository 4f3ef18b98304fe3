// One row of logits, as one block of threads sees it: keys, masses, and sums that do not depend on
// the order in which they are added.
//
//   key(id)  = (logit as an integer that rises with it) << 32 | ~id
//   mass(id) = floor(2^45 exp((logit - peak) / temperature))
//
// A key names an id, and of two ids the larger key is the better one: the larger logit or, of equal
// ones, the lower id. Masses are integers: atomic additions in any order give the same sum, so a
// draw is a function of (logits, uniform) alone. The largest mass is 2^45; a mass below 2^-45 of it
// counts as 0, and the sum of 2^18 ids still fits into 64 bits. The exponential has the precision
// of fp32.
#pragma once

#include <cmath>

#include "device.cuh"
#include "ptd/cuda/select.h"

namespace ptd::cuda {

using Key = unsigned long long;
using Mass = unsigned long long;

inline constexpr int kSelectThreads = 512, kSelectWarps = kSelectThreads / 32;
inline constexpr Key kNaNKey = ~Key{0};

__device__ __forceinline__ Key key_of(float logit, int id) {
  if (logit != logit) return kNaNKey;
  const unsigned bits = __float_as_uint(logit + 0.0f);  // of -0 and 0 the same
  const unsigned rising = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<Key>(rising) << 32 | (0xffffffffu - static_cast<unsigned>(id));
}
__device__ __forceinline__ int id_of(Key key) {
  return static_cast<int>(0xffffffffu - static_cast<unsigned>(key));
}
__device__ __forceinline__ float logit_of(Key key) {
  const unsigned rising = static_cast<unsigned>(key >> 32);
  return __uint_as_float((rising >> 31) != 0 ? rising & 0x7fffffffu : ~rising);
}

// How many ids, and how much mass.
struct Amount {
  unsigned count = 0;
  Mass mass = 0;
};
__device__ __forceinline__ Amount operator+(Amount a, Amount b) {
  return {a.count + b.count, a.mass + b.mass};
}
__device__ __forceinline__ bool reaches(Amount a, Amount limit) {
  return a.count >= limit.count || a.mass >= limit.mass;
}

// What the threads of the block share.
struct SelectShared {
  static constexpr int kBins = 256, kCandidates = 512, kSegments = 256;
  Mass bin_mass[kBins];
  unsigned bin_count[kBins];
  Key candidates[kCandidates];
  Mass candidate_mass[kCandidates];
  Mass segments[kSegments];
  Key partial[kSelectWarps];  // of a reduction over the block
  Key key;                    // results that one thread tells all
  Amount amount;
  unsigned found;
};

template <typename T>
struct Row {
  const T* logits;
  int vocab;
  float peak;
  float inverse_heat;  // 1 / temperature, finite

  __device__ __forceinline__ Key key(int id) const { return key_of(to_float(logits[id]), id); }
  __device__ __forceinline__ Mass mass(float logit) const {
    const float share = expf(__fmul_rn(__fsub_rn(logit, peak), inverse_heat));
    return static_cast<Mass>(share * 35184372088832.0f);
  }
};

// What a filter keeps: keys from `last` on with at least `least_mass`.
struct Kept {
  Key last = 0;
  Mass least_mass = 0;
};

template <typename T>
__device__ __forceinline__ Mass kept_mass(const Row<T>& row, const Kept& kept, int id) {
  const Key key = row.key(id);
  const Mass mass = row.mass(logit_of(key));
  return key >= kept.last && mass >= kept.least_mass ? mass : 0;
}

struct Sum {
  __device__ __forceinline__ Mass operator()(Mass a, Mass b) const { return a + b; }
};
struct Largest {
  __device__ __forceinline__ Key operator()(Key a, Key b) const { return a < b ? b : a; }
};

// join() over the values of all threads, in all threads.
template <typename Join>
__device__ unsigned long long block_reduce(SelectShared& shared, unsigned long long value,
                                           const Join& join) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) {
    value = join(value, __shfl_xor_sync(kAllLanes, value, bits));
  }
  __syncthreads();  // the last one's results have been read
  if (threadIdx.x % 32 == 0) shared.partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared.partial[0];
#pragma unroll
  for (int w = 1; w < kSelectWarps; ++w) value = join(value, shared.partial[w]);
  return value;
}

template <typename T>
__device__ Mass total_mass(SelectShared& shared, const Row<T>& row) {
  Mass sum = 0;
  for (int id = threadIdx.x; id < row.vocab; id += kSelectThreads) {
    sum += row.mass(to_float(row.logits[id]));
  }
  return block_reduce(shared, sum, Sum{});
}

// Of lane l the sum over lanes 0..l.
template <typename V>
__device__ __forceinline__ V scan_lanes(V value) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const V before = __shfl_up_sync(kAllLanes, value, distance);
    if (static_cast<int>(threadIdx.x % 32) >= distance) value += before;
  }
  return value;
}

}  // namespace ptd::cuda
