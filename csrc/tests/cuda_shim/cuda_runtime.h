// Stands in for CUDA's header of this name: the language extensions that csrc/cuda uses.
//
// Warp functions take all 32 lanes, and shared memory is dynamic: both are checked. Grid and block
// size are left out, for a kernel here knows them as constants.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "cuda_runtime_api.h"
#include "fibers.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (::cuda_shim::current_thread())
#define blockIdx (::cuda_shim::current_block())

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute, int bytes) {
  return cuda_shim::allow_shared(reinterpret_cast<void*>(kernel), bytes);
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return cuda_shim::launch(reinterpret_cast<void*>(kernel), config->gridDim, config->blockDim,
                           config->dynamicSmemBytes,
                           [&] { kernel(static_cast<Parameters>(arguments)...); });
}

inline void __syncthreads() { cuda_shim::sync_block(); }
inline void __syncwarp() { cuda_shim::sync_warp(); }

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  return cuda_shim::read_lane(mask, value, lane & 31);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return cuda_shim::read_lane(mask, value, cuda_shim::lane() ^ bits);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, int distance) {
  const int from = cuda_shim::lane() - distance;
  return cuda_shim::read_lane(mask, value, from < 0 ? cuda_shim::lane() : from);
}
inline unsigned __ballot_sync(unsigned mask, bool vote) { return cuda_shim::ballot(mask, vote); }

// A thread runs until it waits, so a plain addition is atomic.
template <typename T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to = before + value;
  return before;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline int __clzll(unsigned long long bits) { return bits == 0 ? 64 : __builtin_clzll(bits); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
