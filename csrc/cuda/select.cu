// Select: the next token of each row of logits, and the ids of its largest logits.
//
// Grid: one block a row; the row, at most 600 KB, stays in L2 between the passes. One pass finds
// the argmax; a draw adds one that sums the masses of segments of 1024 ids (the block's warps take
// one each), of which the segment of the drawn id is looked at again; select_filter.cuh has what
// top-k, top-p and the ids of the largest logits add. Traffic: 1 read of the row for greedy rows, 2
// for sampled ones, 5 to 7 with filters, of which the first comes from DRAM. Nothing depends on the
// order of the threads.
#include "ptd/cuda/select.h"
#include "select_filter.cuh"

namespace ptd::cuda {

namespace {

constexpr int kSegment = kMaxVocab / SelectShared::kSegments;  // ids

// The first id whose cumulative mass exceeds uniform * total.
template <typename T>
__device__ int draw(SelectShared& shared, const Row<T>& row, const Kept& kept, float uniform) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int segments = static_cast<int>(ceil_div(row.vocab, kSegment));
  for (int s = warp; s < segments; s += kSelectWarps) {
    const int end = min_of((s + 1) * kSegment, row.vocab);
    Mass sum = 0;
    for (int id = s * kSegment + lane; id < end; id += 32) sum += kept_mass(row, kept, id);
    sum = warp_sum(sum);
    if (lane == 0) shared.segments[s] = sum;
  }
  __syncthreads();
  if (warp == 0) {
    Mass total = 0;
    for (int s = lane; s < segments; s += 32) total += shared.segments[s];
    total = warp_sum(total);
    // The sum is an integer: it exceeds a number if it exceeds its whole part.
    const Mass threshold = min_of(
        static_cast<Mass>(static_cast<double>(uniform) * static_cast<double>(total)), total - 1);
    Mass before = 0;
    // Of `value` in each lane, cumulated: the first that exceeds the threshold, or -1.
    const auto find = [&](Mass value) {
      const Mass sum = before + scan_lanes(value);
      const unsigned over = __ballot_sync(kAllLanes, sum > threshold);
      const int first = over == 0 ? -1 : __popc((over & (0u - over)) - 1);
      const Mass ahead = __shfl_sync(kAllLanes, sum - value, first < 0 ? 31 : first);
      before = first < 0 ? __shfl_sync(kAllLanes, sum, 31) : ahead;
      return first;
    };
    int segment = -1;
    for (int s = 0; segment < 0 && s < segments; s += 32) {
      const int first = find(s + lane < segments ? shared.segments[s + lane] : 0);
      if (first >= 0) segment = s + first;
    }
    int drawn = -1;
    const int end = min_of((segment + 1) * kSegment, row.vocab);
    for (int id = segment * kSegment; drawn < 0 && id < end; id += 32) {
      const int first = find(id + lane < end ? kept_mass(row, kept, id + lane) : 0);
      if (first >= 0) drawn = id + first;
    }
    if (lane == 0) shared.found = static_cast<unsigned>(drawn);
  }
  __syncthreads();
  return static_cast<int>(shared.found);
}

// The ids of the `k` largest logits to next[0..k), largest first; those behind `top_p` become -1.
template <typename T>
__device__ void list_largest(SelectShared& shared, const Row<T>& row, int k, float top_p,
                             std::int32_t* next) {
  Amount reached;
  Key last = 0;
  find_last(shared, row, {static_cast<unsigned>(k), ~Mass{0}}, reached, last);
  const bool drops = top_p > 0 && top_p < 1;
  const double total = drops ? static_cast<double>(total_mass(shared, row)) : 0;
  __syncthreads();
  collect(shared, row, last, key_of(row.peak, 0));
  for (int i = threadIdx.x; i < k; i += kSelectThreads) {
    const Key key = shared.candidates[i];
    const Amount better = better_candidates(shared, static_cast<unsigned>(k), key);
    const bool beyond = drops && better.count > 0 &&
                        static_cast<double>(better.mass) >= static_cast<double>(top_p) * total;
    next[better.count] = beyond ? -1 : id_of(key);
  }
}

template <typename T>
__global__ void __launch_bounds__(kSelectThreads, 1) select_kernel(SelectParams p) {
  SelectShared& shared = *reinterpret_cast<SelectShared*>(dynamic_shared());
  const int i = static_cast<int>(blockIdx.x);
  const T* logits = static_cast<const T*>(p.logits) + i * p.logits_stride;
  std::int32_t* next = p.next + i * p.next_stride;

  Row<T> row{logits, p.vocab, 0.0f, 1.0f};
  Key best = 0;
  for (int id = threadIdx.x; id < p.vocab; id += kSelectThreads) {
    best = max_of(best, row.key(id));
  }
  best = block_reduce(shared, best, Largest{});
  row.peak = logit_of(best);
  if (best == kNaNKey || fabsf(row.peak) == INFINITY) {
    for (int k = threadIdx.x; k <= p.successors; k += kSelectThreads) next[k] = -1;
    return;
  }

  int chosen = id_of(best);
  const bool may_draw = p.mode != SelectMode::kGreedy && i < p.n_verify;
  const float temperature = may_draw ? p.temperature[i] : 0.0f;
  if (temperature > 0) {
    // A temperature below 3e-39 has no finite inverse, and 0 * infinity would be NaN.
    row.inverse_heat = fminf(__fdiv_rn(1.0f, temperature), 3e38f);
    Kept kept;
    if (p.mode == SelectMode::kFilter) kept = filter(shared, row, p.sampling);
    chosen = draw(shared, row, kept, p.uniform[i]);
  }
  if (threadIdx.x == 0) next[0] = chosen;
  if (p.successors > 0) {
    row.inverse_heat = 1.0f;
    __syncthreads();
    list_largest(shared, row, p.successors, p.sampling[3], next + 1);
  }
}

}  // namespace

cudaError_t select(const SelectParams& p, cudaStream_t stream) {
  if (p.rows < 0 || p.vocab < 1 || p.vocab > kMaxVocab || p.successors < 0 ||
      p.successors > p.vocab || p.successors > kMaxSuccessors) {
    return cudaErrorInvalidValue;
  }
  if (p.rows == 0) return cudaSuccess;
  const bool draws = p.mode != SelectMode::kGreedy && p.n_verify > 0;
  const bool reads_sampling = p.mode == SelectMode::kFilter || p.successors > 0;
  if (!all_given({p.logits, p.next}) || (draws && !all_given({p.temperature, p.uniform})) ||
      (reads_sampling && p.sampling == nullptr)) {
    return cudaErrorInvalidValue;
  }
  static_assert(kMaxSuccessors <= SelectShared::kCandidates);
  const dim3 grid(static_cast<unsigned>(p.rows));
  return with_dtype(p.dtype, [&](auto element) {
    return launch_kernel(select_kernel<decltype(element)>, grid, kSelectThreads,
                         static_cast<int>(sizeof(SelectShared)), stream, p);
  });
}

}  // namespace ptd::cuda
