// Splits a fused projection, normalises and rotates queries and keys, stores keys and values.
#pragma once

#include <cstdint>

#include "ptd/cuda/types.h"

namespace ptd::cuda {

// q, k, v = split(qkv); q, k = rmsnorm(q) * q_norm, rmsnorm(k) * k_norm where given; both rotated;
// q_out[i] = q[i]; cache row prefix_len[0] + i = k[i], v[i].
struct RopeKVWriteParams {
  DType dtype;
  int rows;      // N
  int q_heads;   // Hq
  int kv_heads;  // Hkv
  int head_dim;  // D, even, at most 256
  float eps;
  std::int64_t kv_head_stride;     // elements
  std::int64_t kv_row_stride;      // elements
  const void* qkv;                 // [N, (Hq + 2 Hkv) * D] dtype
  const void* q_norm;              // [D] dtype, or null
  const void* k_norm;              // [D] dtype, null with q_norm
  const float* cos_sin;            // [max_pos, D]: D/2 cosines, then D/2 sines
  const std::int32_t* positions;   // [N]
  const std::int32_t* prefix_len;  // [1]
  void* k_cache;                   // [Hkv, capacity, D] dtype, strided
  void* v_cache;                   // [Hkv, capacity, D] dtype, strided
  void* q_out;                     // [N, Hq, D] dtype
};

cudaError_t rope_kv_write(const RopeKVWriteParams& params, cudaStream_t stream);

}  // namespace ptd::cuda
