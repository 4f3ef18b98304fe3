// KV commit: row prefix_len - n_commit + i of every head takes row commit_src[i].
//
// Grid: one thread for 16 bytes of the rows of one (layer, head), keys and values alike; it walks
// through the commit by itself, so no thread waits for another. Sources rise and lie at or behind
// their destinations: reading the next kBatch rows before writing them reads every row as it was.
// Traffic: 2 L Hkv D element_size bytes in and out for each committed row that moves.
#include "device.cuh"
#include "ptd/cuda/kv_commit.h"

namespace ptd::cuda {

namespace {

constexpr int kThreads = 128, kBatch = 4;

__global__ void __launch_bounds__(kThreads) kv_commit_kernel(KVCommitParams p) {
  const int chunks = p.head_dim * p.element_size / 16;
  std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int chunk = static_cast<int>(at % chunks);
  at /= chunks;
  const int head = static_cast<int>(at % p.kv_heads);
  at /= p.kv_heads;
  if (at >= 2 * static_cast<std::int64_t>(p.layers)) return;
  const std::int64_t layer = at / 2;
  unsigned char* cache = static_cast<unsigned char*>(at % 2 == 0 ? p.k_cache : p.v_cache);
  cache += (layer * p.layer_stride + head * p.head_stride) * p.element_size + 16 * chunk;

  const int n = min_of(*p.n_commit, p.max_commit);
  const std::int64_t first = static_cast<std::int64_t>(*p.prefix_len) - *p.n_commit;
  const std::int64_t row_bytes = p.row_stride * p.element_size;
  for (int begin = 0; begin < n; begin += kBatch) {
    uint4 held[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (begin + k >= n) break;
      held[k] = *reinterpret_cast<const uint4*>(cache + p.commit_src[begin + k] * row_bytes);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (begin + k >= n) break;
      *reinterpret_cast<uint4*>(cache + (first + begin + k) * row_bytes) = held[k];
    }
  }
}

}  // namespace

cudaError_t kv_commit(const KVCommitParams& p, cudaStream_t stream) {
  const std::int64_t row_bytes = static_cast<std::int64_t>(p.head_dim) * p.element_size;
  const bool sized = (p.element_size == 1 || p.element_size == 2 || p.element_size == 4) &&
                     p.layers >= 1 && p.kv_heads >= 1 && p.head_dim >= 1 && p.max_commit >= 0;
  if (!sized) return cudaErrorInvalidValue;
  if (p.max_commit == 0) return cudaSuccess;
  if (!all_given({p.k_cache, p.v_cache, p.commit_src, p.prefix_len, p.n_commit}) ||
      !all_in_16_bytes({row_bytes, address_of(p.k_cache), address_of(p.v_cache),
                        p.layer_stride * p.element_size, p.head_stride * p.element_size,
                        p.row_stride * p.element_size})) {
    return cudaErrorInvalidValue;
  }
  const std::int64_t threads = 2 * row_bytes / 16 * p.layers * p.kv_heads;
  const dim3 grid(static_cast<unsigned>(ceil_div(threads, kThreads)));
  return launch_kernel(kv_commit_kernel, grid, kThreads, 0, stream, p);
}

}  // namespace ptd::cuda
