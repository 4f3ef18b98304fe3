// Residual add with RMS norm (one block a row) and the gated activation (one thread an element).
//
// Sums run in one fixed order, so a row does not depend on the others. Traffic: add_rms_norm reads
// x, residual and weight and writes residual and out; the row stays in registers or, where it is
// longer than they are, in L1. silu_mul reads 2 N I elements and writes N I.
#include "device.cuh"
#include "ptd/cuda/pointwise.h"

namespace ptd::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

template <typename T>
__global__ void __launch_bounds__(kThreads) add_rms_norm_kernel(AddRMSNormParams p) {
  const int thread = threadIdx.x;
  const std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * p.hidden;
  const T* x = p.x == nullptr ? nullptr : static_cast<const T*>(p.x) + start;
  T* residual = static_cast<T*>(p.residual) + start;
  T* out = static_cast<T*>(p.out) + start;
  const T* weight = static_cast<const T*>(p.weight);
  float* sums = reinterpret_cast<float*>(dynamic_shared());  // [kWarps]

  float sum = 0;
  for (int i = thread; i < p.hidden; i += kThreads) {
    float value = to_float(residual[i]);
    if (x != nullptr) {
      value = round_to<T>(__fadd_rn(value, to_float(x[i])));
      residual[i] = from_float<T>(value);
    }
    sum = __fmaf_rn(value, value, sum);
  }
  sum = warp_sum(sum);
  if (thread % 32 == 0) sums[thread / 32] = sum;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total = __fadd_rn(total, sums[w]);
  const float mean = __fdiv_rn(total, static_cast<float>(p.hidden));
  const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, p.eps)));
  // A thread reads what it wrote itself.
  for (int i = thread; i < p.hidden; i += kThreads) {
    const float normal = round_to<T>(to_float(residual[i]) * inverse);
    out[i] = from_float<T>(normal * to_float(weight[i]));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) silu_mul_kernel(SiluMulParams p) {
  const std::int64_t row = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.inner) return;
  const T* gate = static_cast<const T*>(p.gate_up) + 2 * row * p.inner;
  const float g = to_float(gate[i]), up = to_float(gate[p.inner + i]);
  const float activated = round_to<T>(__fdiv_rn(g, __fadd_rn(1.0f, expf(-g))));
  static_cast<T*>(p.out)[row * p.inner + i] = from_float<T>(activated * up);
}

}  // namespace

cudaError_t add_rms_norm(const AddRMSNormParams& p, cudaStream_t stream) {
  if (p.rows < 0 || p.hidden < 1) return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  if (!all_given({p.residual, p.weight, p.out})) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(p.rows));
  return with_dtype(p.dtype, [&](auto element) {
    return launch_kernel(add_rms_norm_kernel<decltype(element)>, grid, kThreads,
                         static_cast<int>(kWarps * sizeof(float)), stream, p);
  });
}

cudaError_t silu_mul(const SiluMulParams& p, cudaStream_t stream) {
  if (p.rows < 0 || p.rows > 65535 || p.inner < 1) return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  if (!all_given({p.gate_up, p.out})) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(ceil_div(p.inner, kThreads)),
                  static_cast<unsigned>(p.rows));
  return with_dtype(p.dtype, [&](auto element) {
    return launch_kernel(silu_mul_kernel<decltype(element)>, grid, kThreads, 0, stream, p);
  });
}

}  // namespace ptd::cuda
