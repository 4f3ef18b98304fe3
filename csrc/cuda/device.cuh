// What every kernel here uses: element types, reductions, the launch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "ptd/cuda/types.h"
#include "ptx.cuh"

namespace ptd::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

template <typename T>
__device__ __forceinline__ float to_float(T value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat162float(value);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __half2float(value);
  } else {
    return value;
  }
}

// Rounded to nearest, halves to even.
template <typename T>
__device__ __forceinline__ T from_float(float value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else {
    return value;
  }
}

template <typename T>
__device__ __forceinline__ float round_to(float value) {
  return to_float(from_float<T>(value));
}

// Two rounded values in one register, `low` in the lower half.
template <typename T>
__device__ __forceinline__ std::uint32_t pack_pair(float low, float high) {
  const T pair[2] = {from_float<T>(low), from_float<T>(high)};
  std::uint32_t word;
  memcpy(&word, pair, 4);
  return word;
}

template <typename T>
__device__ __forceinline__ T min_of(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
__device__ __forceinline__ T max_of(T a, T b) {
  return a < b ? b : a;
}

// The sum over the lanes of a warp, in every lane, in one fixed order.
template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) value += __shfl_xor_sync(kAllLanes, value, bits);
  return value;
}

__host__ __device__ constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// What launchers ask before a kernel reads: pointers that are there, and pieces of 16 bytes.
inline bool all_given(std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers) {
    if (pointer == nullptr) return false;
  }
  return true;
}
inline bool all_in_16_bytes(std::initializer_list<std::int64_t> bytes) {
  for (const std::int64_t number : bytes) {
    if (number % 16 != 0) return false;
  }
  return true;
}
inline std::int64_t address_of(const void* pointer) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(pointer));
}

// Enqueues a kernel whose shared memory may exceed the 48 KB that need no permission.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes,
                          cudaStream_t stream, const Arguments&... arguments) {
  if (shared_bytes > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// Calls `function` with a value of the element type.
template <typename Function>
cudaError_t with_dtype(DType dtype, const Function& function) {
  switch (dtype) {
    case DType::kFloat32:
      return function(float{});
    case DType::kFloat16:
      return function(__half{});
    case DType::kBFloat16:
      return function(__nv_bfloat16{});
  }
  return cudaErrorInvalidValue;
}

}  // namespace ptd::cuda
