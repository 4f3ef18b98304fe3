// The shapes of the attention kernels: tiles, warps, shared memory, workspace.
#pragma once

#include <cstdint>

#include "device.cuh"
#include "ptd/cuda/tree_attention.h"

namespace ptd::cuda {

// Positions of a tile. A constant of (element size, head size): the bits of the output depend on
// it.
constexpr int tile_of(int element_size, int head_dim) {
  return element_size == 4 || head_dim > 128 ? 32 : 64;
}

template <typename T, int kHeadDim>
struct AttentionLayout {
  static constexpr int kTile = tile_of(sizeof(T), kHeadDim);
  static constexpr int kPerChunk = 16 / sizeof(T);  // elements of one asynchronous copy
  static constexpr int kChunks = kHeadDim / kPerChunk;
  // Rows in shared memory are 16 bytes longer than they need: eight rows then begin in eight
  // different groups of banks, whatever the head size.
  static constexpr int kStride = kHeadDim + kPerChunk;
  static constexpr int kTileElements = kTile * kStride;

  // Kernel 1. Two stages of keys and values, but for the one size that leaves no room for them.
  static constexpr int kStages = sizeof(T) == 4 && kHeadDim == 256 ? 1 : 2;
  static constexpr int kWarps = 4;
  static constexpr int kBlockRows = 16 * kWarps;
  static constexpr int kPrefixShared =
      static_cast<int>(sizeof(T)) * (kBlockRows * kStride + 2 * kStages * kTileElements);

  // Kernel 2. Warps share the columns of the output, an even number of groups of 8 each.
  static constexpr int kParts = kHeadDim == 80 ? 5 : kHeadDim == 96 ? 3 : 4;
  static constexpr int kTreeShared =
      static_cast<int>(sizeof(T)) * (16 * kStride + 2 * kTileElements) +
      kMaxTreeRows * static_cast<int>(sizeof(std::int32_t));

  static_assert(kPrefixShared <= 163 * 1024 && kTreeShared <= 163 * 1024, "sm_80 has no more");
  static constexpr AttentionShared kShared{kPrefixShared, kTreeShared};
};

// Splits lie at absolute positions, as a number of 4 significant bits does: split 8 e + m, m
// in 8..15, begins at unit m << e and is 1 << e units long, for e >= 0; the first 8 are one unit
// each. A unit has `unit` tiles.
__host__ __device__ inline std::int64_t first_tile_of(std::int64_t split, int unit) {
  if (split < 8) return split * unit;
  return ((8 + split % 8) << (split / 8 - 1)) * unit;
}
__host__ __device__ inline std::int64_t split_of(std::int64_t tile, int unit) {
  const std::int64_t at = tile / unit;
  int e = 0;
  while (at >> e >= 16) ++e;
  return 8 * e + (at >> e);
}

// Where the state of a (split, key/value head, packed row) lies in the workspace: `rows` is N * G.
struct SplitStates {
  float* workspace;
  std::int64_t splits, kv_heads, rows;
  int head_dim;

  __device__ __forceinline__ std::int64_t slot(std::int64_t split, int head, int row) const {
    return (split * kv_heads + head) * rows + row;
  }
  // [head_dim] fp32: the weighted sum of values.
  __device__ __forceinline__ float* values(std::int64_t slot) const {
    return workspace + slot * head_dim;
  }
  // [2] fp32: the largest score and the sum of weights.
  __device__ __forceinline__ float2* scale(std::int64_t slot) const {
    return reinterpret_cast<float2*>(workspace + splits * kv_heads * rows * head_dim) + slot;
  }
};

// Of one dtype, in a source of its own: nvcc then compiles them side by side.
cudaError_t tree_attention_f32(const TreeAttentionParams& params, cudaStream_t stream);
cudaError_t tree_attention_f16(const TreeAttentionParams& params, cudaStream_t stream);
cudaError_t tree_attention_bf16(const TreeAttentionParams& params, cudaStream_t stream);

}  // namespace ptd::cuda
