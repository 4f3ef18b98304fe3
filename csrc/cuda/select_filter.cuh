// Where a number of ids or an amount of mass is reached, the best id first: the end of top-k and of
// top-p.
//
// The row is not sorted. Rings of keys are looked at from the peak outwards; in each, 256 bins
// count ids and masses, the bin with the end becomes the next range, and as soon as it holds few
// enough ids these are compared one with another. Where a model is sure of anything, that is two
// passes over the row: the ids within 8 temperatures of the peak, and those of one bin.
#pragma once

#include "select_row.cuh"

namespace ptd::cuda {

inline constexpr int kRings = 3;

// The lowest key of a ring; the last ring has all that is left.
template <typename T>
__device__ __forceinline__ Key ring_end(const Row<T>& row, int ring) {
  if (ring == kRings - 1) return 0;
  const float depth = __fdiv_rn(ring == 0 ? 8.0f : 16.0f, row.inverse_heat);
  return key_of(__fsub_rn(row.peak, depth), -1);
}

// Counts the keys of [low, high] into bins of 2^shift keys.
template <typename T>
__device__ void count_bins(SelectShared& shared, const Row<T>& row, Key low, Key high, int shift) {
  for (int b = threadIdx.x; b < SelectShared::kBins; b += kSelectThreads) {
    shared.bin_count[b] = 0;
    shared.bin_mass[b] = 0;
  }
  __syncthreads();
  for (int id = threadIdx.x; id < row.vocab; id += kSelectThreads) {
    const Key key = row.key(id);
    if (key < low || key > high) continue;
    const int bin = static_cast<int>((key - low) >> shift);
    atomicAdd(&shared.bin_count[bin], 1u);
    atomicAdd(&shared.bin_mass[bin], row.mass(logit_of(key)));
  }
  __syncthreads();
}

// The bin that reaches the limit, from the top: shared.found, kBins if none does. `before` and
// shared.amount: what lies above it. Ends with all threads knowing.
__device__ inline void find_bin(SelectShared& shared, Amount limit, Amount before) {
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    unsigned found = SelectShared::kBins;
    for (int top = SelectShared::kBins - 1; top >= 0 && found == SelectShared::kBins; top -= 32) {
      const int bin = top - lane;
      const Amount own{shared.bin_count[bin], shared.bin_mass[bin]};
      Amount sum = before + Amount{scan_lanes(own.count), scan_lanes(own.mass)};
      const unsigned ends = __ballot_sync(kAllLanes, own.count > 0 && reaches(sum, limit));
      // The first lane of those, else the sum of all 32.
      const int lane_of_end = ends != 0 ? __popc((ends & (0u - ends)) - 1) : 31;
      if (ends != 0) {
        found = static_cast<unsigned>(top - lane_of_end);
        sum.count -= own.count;
        sum.mass -= own.mass;
      }
      before.count = __shfl_sync(kAllLanes, sum.count, lane_of_end);
      before.mass = __shfl_sync(kAllLanes, sum.mass, lane_of_end);
    }
    if (lane == 0) {
      shared.found = found;
      shared.amount = before;
    }
  }
  __syncthreads();
}

// Puts the keys of [low, high], at most kCandidates, into shared.candidates in any order, with
// their masses beside them.
template <typename T>
__device__ void collect(SelectShared& shared, const Row<T>& row, Key low, Key high) {
  if (threadIdx.x == 0) shared.found = 0;
  __syncthreads();
  for (int id = threadIdx.x; id < row.vocab; id += kSelectThreads) {
    const Key key = row.key(id);
    if (key < low || key > high) continue;
    const unsigned at = atomicAdd(&shared.found, 1u);
    shared.candidates[at] = key;
    shared.candidate_mass[at] = row.mass(logit_of(key));
  }
  __syncthreads();
}

// What of the first `count` candidates is better than `key`.
__device__ inline Amount better_candidates(const SelectShared& shared, unsigned count, Key key) {
  Amount sum;
  for (unsigned j = 0; j < count; ++j) {
    if (shared.candidates[j] <= key) continue;
    sum.count += 1;
    sum.mass += shared.candidate_mass[j];
  }
  return sum;
}

// The key of [low, high] at which `before` and the keys from `high` on reach the limit. `before`
// becomes what all up to it amount to. False, with all of the range added, if none does.
template <typename T>
__device__ bool find_in_range(SelectShared& shared, const Row<T>& row, Key low, Key high,
                              Amount limit, Amount& before, Key& last) {
  while (true) {
    const int bits = 64 - __clzll(high - low);
    const int shift = max_of(bits - 8, 0);
    count_bins(shared, row, low, high, shift);
    find_bin(shared, limit, before);
    before = shared.amount;
    const unsigned bin = shared.found;
    if (bin == SelectShared::kBins) return false;
    const unsigned count = shared.bin_count[bin];
    low += static_cast<Key>(bin) << shift;
    high = min_of(high, low + ((Key{1} << shift) - 1));
    __syncthreads();  // what find_bin told has been read
    if (count > SelectShared::kCandidates) continue;
    collect(shared, row, low, high);
    for (unsigned i = threadIdx.x; i < count; i += kSelectThreads) {
      const Key key = shared.candidates[i];
      Amount sum = before + better_candidates(shared, count, key);
      if (reaches(sum, limit)) continue;
      sum = sum + Amount{1, shared.candidate_mass[i]};
      if (!reaches(sum, limit)) continue;
      shared.key = key;  // the only one
      shared.amount = sum;
    }
    __syncthreads();
    last = shared.key;
    before = shared.amount;
    __syncthreads();
    return true;
  }
}

// The same over the whole row.
template <typename T>
__device__ __attribute__((noinline)) bool find_last(SelectShared& shared, const Row<T>& row,
                                                    Amount limit, Amount& reached, Key& last) {
  reached = Amount{};
  Key high = key_of(row.peak, 0);
#pragma unroll 1
  for (int ring = 0; ring < kRings; ++ring) {
    const Key low = ring_end(row, ring);
    if (low > high) continue;  // the ring before has it all
    if (find_in_range(shared, row, low, high, limit, reached, last)) return true;
    high = low - 1;
  }
  return false;
}

// What top_k, top_p and min_p keep, in this order.
template <typename T>
__device__ Kept filter(SelectShared& shared, const Row<T>& row, const float* sampling) {
  const float top_k = sampling[0], top_p = sampling[1], min_p = sampling[2];
  Kept kept;
  Amount limit{~0u, ~Mass{0}}, reached;
  if (top_k > 0 && top_k < static_cast<float>(row.vocab)) {
    limit.count = static_cast<unsigned>(top_k);
    find_last(shared, row, limit, reached, kept.last);
  }
  if (top_p < 1) {
    const Mass total = kept.last != 0 ? reached.mass : total_mass(shared, row);
    const double wanted = ceil(static_cast<double>(top_p) * static_cast<double>(total));
    limit.mass = wanted < 1 ? 1 : static_cast<Mass>(wanted);
    Key last = 0;
    if (find_last(shared, row, limit, reached, last)) kept.last = last;
  }
  if (min_p > 0) kept.least_mass = static_cast<Mass>(min_of(min_p, 1.0f) * 35184372088832.0f);
  return kept;
}

}  // namespace ptd::cuda
