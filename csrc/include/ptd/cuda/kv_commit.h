// Moves the accepted rows of a step to the end of the committed prefix, in place.
#pragma once

#include <cstdint>

#include "ptd/cuda/types.h"

namespace ptd::cuda {

// Row prefix_len[0] - n_commit[0] + i takes row commit_src[i], for i < min(n_commit[0], P).
struct KVCommitParams {
  int element_size;                // bytes: 1, 2 or 4
  int layers;                      // L
  int kv_heads;                    // Hkv
  int head_dim;                    // D; a row is a multiple of 16 bytes
  int max_commit;                  // P
  std::int64_t layer_stride;       // elements
  std::int64_t head_stride;        // elements
  std::int64_t row_stride;         // elements, a multiple of 16 bytes as the other strides
  void* k_cache;                   // [L, Hkv, capacity, D], strided
  void* v_cache;                   // [L, Hkv, capacity, D], strided
  const std::int32_t* commit_src;  // [P], rising over the first n_commit
  const std::int32_t* prefix_len;  // [1], counts the accepted rows
  const std::int32_t* n_commit;    // [1]
};

cudaError_t kv_commit(const KVCommitParams& params, cudaStream_t stream);

}  // namespace ptd::cuda
