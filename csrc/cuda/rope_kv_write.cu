// QK norm, rotation and KV write, in one pass over the fused projection.
//
//   q, k = rmsnorm(q) * q_norm, rmsnorm(k) * k_norm     where given, rounded after each factor
//   (a, b) -> (a cos - b sin, b cos + a sin)            pairs (d, d + D / 2), in fp32, rounded once
//
// Grid: one warp for one (row, head), values being heads too; four warps a block. A lane holds
// pairs lane, lane + 32, ... in registers, so the projection is read once and everything is written
// once: 2 N (Hq + 2 Hkv) D elements. What a row gets does not depend on the others.
#include "device.cuh"
#include "ptd/cuda/rope_kv_write.h"

namespace ptd::cuda {

namespace {

constexpr int kWarps = 4, kMaxPairs = 4;  // pairs a lane holds: D <= 256

// One lane's pairs of a head, scaled to a mean square of 1 over the head and then by the weights.
template <typename T>
__device__ void normalise(float (&low)[kMaxPairs], float (&high)[kMaxPairs], int half, int lane,
                          const T* weight, float eps) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    sum = __fmaf_rn(low[i], low[i], sum);
    sum = __fmaf_rn(high[i], high[i], sum);
  }
  const float mean = __fdiv_rn(warp_sum(sum), static_cast<float>(2 * half));
  const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    const int d = lane + 32 * i;
    if (d >= half) break;
    low[i] = round_to<T>(round_to<T>(low[i] * inverse) * to_float(weight[d]));
    high[i] = round_to<T>(round_to<T>(high[i] * inverse) * to_float(weight[d + half]));
  }
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) rope_kv_write_kernel(RopeKVWriteParams p) {
  const int lane = threadIdx.x % 32;
  const std::int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y) * kWarps + threadIdx.x / 32;
  const int heads = p.q_heads + 2 * p.kv_heads, half = p.head_dim / 2;
  if (head >= heads) return;
  const bool is_query = head < p.q_heads, is_value = head >= p.q_heads + p.kv_heads;

  const T* source = static_cast<const T*>(p.qkv) + (row * heads + head) * p.head_dim;
  T* target;
  if (is_query) {
    target = static_cast<T*>(p.q_out) + (row * p.q_heads + head) * p.head_dim;
  } else {
    const int kv_head = (head - p.q_heads) % p.kv_heads;
    target = static_cast<T*>(is_value ? p.v_cache : p.k_cache) + kv_head * p.kv_head_stride +
             (*p.prefix_len + row) * p.kv_row_stride;
  }

  float low[kMaxPairs], high[kMaxPairs];
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    const int d = lane + 32 * i;
    low[i] = d < half ? to_float(source[d]) : 0.0f;
    high[i] = d < half ? to_float(source[d + half]) : 0.0f;
  }
  if (!is_value) {
    const T* weight = static_cast<const T*>(is_query ? p.q_norm : p.k_norm);
    if (weight != nullptr) normalise(low, high, half, lane, weight, p.eps);
    const float* cosine = p.cos_sin + static_cast<std::int64_t>(p.positions[row]) * p.head_dim;
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i) {
      const int d = lane + 32 * i;
      if (d >= half) break;
      const float c = cosine[d], s = cosine[d + half], a = low[i], b = high[i];
      low[i] = __fmaf_rn(-b, s, __fmul_rn(a, c));
      high[i] = __fmaf_rn(a, s, __fmul_rn(b, c));
    }
  }
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    const int d = lane + 32 * i;
    if (d >= half) break;
    target[d] = from_float<T>(low[i]);
    target[d + half] = from_float<T>(high[i]);
  }
}

}  // namespace

cudaError_t rope_kv_write(const RopeKVWriteParams& p, cudaStream_t stream) {
  if (p.rows < 0 || p.q_heads < 1 || p.kv_heads < 1 || p.head_dim % 2 != 0 || p.head_dim < 2 ||
      p.head_dim > 64 * kMaxPairs || (p.q_norm == nullptr) != (p.k_norm == nullptr)) {
    return cudaErrorInvalidValue;
  }
  if (p.rows == 0) return cudaSuccess;
  if (!all_given({p.qkv, p.cos_sin, p.positions, p.prefix_len, p.k_cache, p.v_cache, p.q_out})) {
    return cudaErrorInvalidValue;
  }
  const dim3 grid(static_cast<unsigned>(p.rows),
                  static_cast<unsigned>(ceil_div(p.q_heads + 2 * p.kv_heads, kWarps)));
  return with_dtype(p.dtype, [&](auto element) {
    return launch_kernel(rope_kv_write_kernel<decltype(element)>, grid, 32 * kWarps, 0, stream, p);
  });
}

}  // namespace ptd::cuda
