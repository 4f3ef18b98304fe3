// What the CUDA launchers share.
//
// A launcher takes a struct of plain pointers into device memory and a stream, enqueues its kernels
// and returns the first error of a launch; it never waits, allocates or reads device memory on the
// host, so it may be captured in a CUDA graph. Nothing here knows a framework.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ptd::cuda {

// Of activations, weights and cache.
enum class DType : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

}  // namespace ptd::cuda
