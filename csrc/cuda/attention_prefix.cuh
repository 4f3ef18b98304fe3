// Kernel 1: the complete tiles of the prefix, which all rows of the step share.
//
// Grid: (block of packed rows, split, key/value head). A packed row is (tree row, head of the
// group), so keys and values are read once for all rows and heads of a block; the blocks of one
// split are neighbours in the grid and share what they read through L2. A split without a complete
// tile ends at once: the grid is sized by kv_bound, prefix_len is read here. No mask and no tree.
//
// Traffic: 2 D element_size bytes for each prefix position and key/value head, from DRAM once; the
// states of the splits, (D + 2) * 4 bytes for each split and packed row, are written.
#pragma once

#include "attention_math.cuh"

namespace ptd::cuda {

// Begins to copy rows first, first + 1, ... of a cache (already at its head) to a tile.
template <typename T, int kHeadDim, int kThreads>
__device__ __forceinline__ void copy_tile(T* to, const T* cache, std::int64_t first,
                                          std::int64_t row_stride) {
  using Layout = AttentionLayout<T, kHeadDim>;
#pragma unroll 4
  for (int c = threadIdx.x; c < Layout::kTile * Layout::kChunks; c += kThreads) {
    const int t = c / Layout::kChunks, at = c % Layout::kChunks * Layout::kPerChunk;
    copy_async_16(to + t * Layout::kStride + at, cache + (first + t) * row_stride + at, true);
  }
}

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(32 * AttentionLayout<T, kHeadDim>::kWarps, 1)
    attention_prefix_kernel(TreeAttentionParams p, SplitStates states) {
  using Layout = AttentionLayout<T, kHeadDim>;
  constexpr int kTile = Layout::kTile, kStride = Layout::kStride, kStages = Layout::kStages;
  constexpr int kThreads = 32 * Layout::kWarps, kGroups = kHeadDim / 8;

  const std::int64_t split = blockIdx.y;
  const int kv_head = static_cast<int>(blockIdx.z), group = p.q_heads / p.kv_heads;
  const std::int64_t prefix = *p.prefix_len + p.prefix_offset;
  const std::int64_t first_tile = first_tile_of(split, p.split_tiles);
  const std::int64_t end_tile = min_of(prefix / kTile, first_tile_of(split + 1, p.split_tiles));
  const int tiles = static_cast<int>(end_tile - first_tile);
  if (tiles <= 0) return;

  T* q_tile = reinterpret_cast<T*>(dynamic_shared());  // [kBlockRows, kStride]
  T* stages = q_tile + Layout::kBlockRows * kStride;   // [kStages, 2, kTile, kStride]
  const int first_row = static_cast<int>(blockIdx.x) * Layout::kBlockRows;
  const int rows = p.rows * group;
  const T* q = static_cast<const T*>(p.q);
  for (int c = threadIdx.x; c < Layout::kBlockRows * Layout::kChunks; c += kThreads) {
    const int row = c / Layout::kChunks, at = c % Layout::kChunks * Layout::kPerChunk;
    const int packed = min_of(first_row + row, rows - 1);  // rows behind the last repeat it
    const std::int64_t head =
        static_cast<std::int64_t>(packed / group) * p.q_heads + kv_head * group + packed % group;
    copy_async_16(q_tile + row * kStride + at, q + head * kHeadDim + at, true);
  }

  const T* k_cache = static_cast<const T*>(p.k_cache) + kv_head * p.kv_head_stride;
  const T* v_cache = static_cast<const T*>(p.v_cache) + kv_head * p.kv_head_stride;
  const auto fetch = [&](int tile) {
    T* stage = stages + tile % kStages * 2 * Layout::kTileElements;
    const std::int64_t first = (first_tile + tile) * kTile;
    copy_tile<T, kHeadDim, kThreads>(stage, k_cache, first, p.kv_row_stride);
    copy_tile<T, kHeadDim, kThreads>(stage + Layout::kTileElements, v_cache, first,
                                     p.kv_row_stride);
    commit_copies();
  };

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool has_rows = first_row + 16 * warp < rows;
  const float score_scale = __fmul_rn(p.scale, 1.44269504f);
  SoftmaxState state;
  float acc[kGroups][4];
  clear(acc);
  if (kStages > 1) fetch(0);
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    if (kStages == 1) fetch(tile);
    if (kStages > 1 && tile + 1 < tiles) {
      fetch(tile + 1);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    if (has_rows) {
      const T* k = stages + tile % kStages * 2 * Layout::kTileElements;
      WarpTile<T, kHeadDim>::step(q_tile + 16 * warp * kStride, k, k + Layout::kTileElements,
                                  score_scale, kTile, state, acc);
    }
    __syncthreads();  // before the next copies land in this stage
  }

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + 16 * warp + lane / 4 + 8 * r;
    if (row >= rows) continue;
    const std::int64_t slot = states.slot(split, kv_head, row);
    float* values = states.values(slot) + lane % 4 * 2;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      *reinterpret_cast<float2*>(values + 8 * g) = make_float2(acc[g][2 * r], acc[g][2 * r + 1]);
    }
    if (lane % 4 == 0) *states.scale(slot) = make_float2(state.largest[r], state.sum[r]);
  }
}

}  // namespace ptd::cuda
