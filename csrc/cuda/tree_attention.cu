// The part of tree attention that runs on the host: shapes, workspace, choice of the kernels.
#include "attention_layout.cuh"
#include "ptd/cuda/tree_attention.h"

namespace ptd::cuda {

int attention_tile(DType dtype, int head_dim) {
  return tile_of(dtype == DType::kFloat32 ? 4 : 2, head_dim);
}

std::int64_t attention_splits(DType dtype, int head_dim, int split_tiles, std::int64_t kv_bound) {
  if (kv_bound < 1 || split_tiles < 1) return 0;
  const std::int64_t tiles = ceil_div(kv_bound, attention_tile(dtype, head_dim));
  return split_of(tiles - 1, split_tiles) + 1;
}

std::int64_t attention_workspace_bytes(const TreeAttentionParams& p) {
  if (p.rows < 1 || p.q_heads < 1 || p.head_dim < 1) return 0;
  const std::int64_t splits = attention_splits(p.dtype, p.head_dim, p.split_tiles, p.kv_bound);
  return splits * p.rows * p.q_heads * (p.head_dim + 2) * static_cast<std::int64_t>(sizeof(float));
}

namespace {

template <typename T>
AttentionShared shared_of(int head_dim) {
  switch (head_dim) {
    case 64:
      return AttentionLayout<T, 64>::kShared;
    case 80:
      return AttentionLayout<T, 80>::kShared;
    case 96:
      return AttentionLayout<T, 96>::kShared;
    case 128:
      return AttentionLayout<T, 128>::kShared;
    case 256:
      return AttentionLayout<T, 256>::kShared;
    default:
      return {0, 0};
  }
}

}  // namespace

AttentionShared attention_shared(DType dtype, int head_dim) {
  return dtype == DType::kFloat32 ? shared_of<float>(head_dim) : shared_of<__half>(head_dim);
}

cudaError_t tree_attention(const TreeAttentionParams& p, cudaStream_t stream) {
  const bool sized = p.rows >= 0 && p.rows <= (p.mask == nullptr ? 65535 : kMaxTreeRows) &&
                     p.kv_heads >= 1 && p.q_heads >= 1 && p.q_heads % p.kv_heads == 0 &&
                     p.kv_heads <= 65535 && p.split_tiles >= 1 && p.prefix_offset >= 0 &&
                     p.kv_bound >= p.prefix_offset + p.rows;
  if (!sized || attention_shared(p.dtype, p.head_dim).prefix == 0 ||
      attention_splits(p.dtype, p.head_dim, p.split_tiles, p.kv_bound) > 65535) {
    return cudaErrorInvalidValue;
  }
  if (p.rows == 0) return cudaSuccess;
  const int size = p.dtype == DType::kFloat32 ? 4 : 2;
  if (!all_given({p.q, p.k_cache, p.v_cache, p.prefix_len, p.workspace, p.out}) ||
      !all_in_16_bytes({address_of(p.q), address_of(p.k_cache), address_of(p.v_cache),
                        size * p.kv_head_stride, size * p.kv_row_stride})) {
    return cudaErrorInvalidValue;
  }
  switch (p.dtype) {
    case DType::kFloat32:
      return tree_attention_f32(p, stream);
    case DType::kFloat16:
      return tree_attention_f16(p, stream);
    case DType::kBFloat16:
      return tree_attention_bf16(p, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace ptd::cuda
