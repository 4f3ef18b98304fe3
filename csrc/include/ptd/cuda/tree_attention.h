// Attention over a committed prefix and a tree (or a chain) behind it, exact for every row.
//
// out[i] = softmax(q[i] K^T * scale) V over the cache rows visible to row i: those below the prefix
// length P = prefix_len[0] + prefix_offset, and P + j where bit j of mask[i] is set (without a
// mask: where j <= i). The bits of a row equal those of the same path decoded one token at a time.
//
// Letters: N rows, Hq query heads, Hkv key/value heads, D head size, W = ceil(N / 64) mask words,
// G = Hq / Hkv, S = attention_splits(dtype, D, split_tiles, kv_bound).
#pragma once

#include <cstdint>

#include "ptd/cuda/types.h"

namespace ptd::cuda {

inline constexpr int kMaxTreeRows = 256;  // of a step with a mask

struct TreeAttentionParams {
  DType dtype;
  int rows;      // N, at most kMaxTreeRows with a mask
  int q_heads;   // Hq
  int kv_heads;  // Hkv, divides Hq
  int head_dim;  // D: 64, 80, 96, 128 or 256
  // Tiles of the shortest split, 1 or more: a constant of the engine, since the bits of the output
  // depend on it. Splits grow with their position, see attention_splits.
  int split_tiles;
  std::int64_t kv_bound;        // P + N <= kv_bound: host-side bound, sizes grid and workspace
  std::int64_t kv_head_stride;  // elements between two heads of the cache
  std::int64_t kv_row_stride;   // elements between two rows, a multiple of 16 bytes
  float scale;
  const void* q;                   // [N, Hq, D] dtype, 16-byte aligned as all dtype pointers
  const void* k_cache;             // [Hkv, capacity, D] dtype, strided
  const void* v_cache;             // [Hkv, capacity, D] dtype, strided
  const std::uint64_t* mask;       // [N, W], each row sees itself; or null: a chain
  const std::int32_t* prefix_len;  // [1]
  std::int64_t prefix_offset;      // rows of this step that are already part of the prefix
  float* workspace;                // attention_workspace_bytes(...), contents do not matter
  void* out;                       // [N, Hq * D] dtype
};

// Positions of one tile: what a row's partial sums are cut into.
int attention_tile(DType dtype, int head_dim);

// Splits below a bound: what one block works through, and leaves one state of in the workspace. The
// first 16 have split_tiles tiles, the next 8 twice as many, and so on: wherever the prefix ends
// there are blocks enough to fill a GPU, and few states for their number of positions.
std::int64_t attention_splits(DType dtype, int head_dim, int split_tiles, std::int64_t kv_bound);

// 0 for a shape that there is not.
std::int64_t attention_workspace_bytes(const TreeAttentionParams& params);

// Bytes of shared memory that a block needs, of the kernel over the prefix and of that over the
// tree; 0 for a head size that there is not.
struct AttentionShared {
  int prefix, tree;
};
AttentionShared attention_shared(DType dtype, int head_dim);

// Returns cudaErrorInvalidValue where the shape is none that the kernels have, or a pointer that is
// needed is null or not aligned. Without rows there is nothing to do.
cudaError_t tree_attention(const TreeAttentionParams& params, cudaStream_t stream);

}  // namespace ptd::cuda
