// Launches both attention kernels of one element type.
#pragma once

#include "attention_prefix.cuh"
#include "attention_tree.cuh"

namespace ptd::cuda {

template <typename T, int kHeadDim>
cudaError_t launch_attention(const TreeAttentionParams& p, cudaStream_t stream) {
  using Layout = AttentionLayout<T, kHeadDim>;
  const int group = p.q_heads / p.kv_heads, rows = p.rows * group;
  const std::int64_t splits = attention_splits(p.dtype, kHeadDim, p.split_tiles, p.kv_bound);
  const SplitStates states{p.workspace, splits, p.kv_heads, rows, kHeadDim};
  const auto kv_heads = static_cast<unsigned>(p.kv_heads);
  const dim3 prefix_grid(static_cast<unsigned>(ceil_div(rows, Layout::kBlockRows)),
                         static_cast<unsigned>(splits), kv_heads);
  const cudaError_t error =
      launch_kernel(attention_prefix_kernel<T, kHeadDim>, prefix_grid, 32 * Layout::kWarps,
                    Layout::kPrefixShared, stream, p, states);
  if (error != cudaSuccess) return error;
  const dim3 tree_grid(static_cast<unsigned>(ceil_div(group, 16)), static_cast<unsigned>(p.rows),
                       kv_heads);
  return launch_kernel(attention_tree_kernel<T, kHeadDim>, tree_grid, 32 * Layout::kParts,
                       Layout::kTreeShared, stream, p, states);
}

template <typename T>
cudaError_t attention_of_type(const TreeAttentionParams& p, cudaStream_t stream) {
  switch (p.head_dim) {
    case 64:
      return launch_attention<T, 64>(p, stream);
    case 80:
      return launch_attention<T, 80>(p, stream);
    case 96:
      return launch_attention<T, 96>(p, stream);
    case 128:
      return launch_attention<T, 128>(p, stream);
    case 256:
      return launch_attention<T, 256>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace ptd::cuda
