// Residual add with RMS norm, and the gated activation.
#pragma once

#include <cstdint>

#include "ptd/cuda/types.h"

namespace ptd::cuda {

// residual += x, rounded to dtype; out = rmsnorm(residual), rounded to dtype, times weight.
struct AddRMSNormParams {
  DType dtype;
  int rows;    // N
  int hidden;  // H
  float eps;
  const void* x;       // [N, H] dtype, or null: nothing is added
  void* residual;      // [N, H] dtype, updated
  const void* weight;  // [H] dtype
  void* out;           // [N, H] dtype
};

cudaError_t add_rms_norm(const AddRMSNormParams& params, cudaStream_t stream);

// out = silu(gate) * up, silu rounded to dtype before the product.
struct SiluMulParams {
  DType dtype;
  int rows;             // N
  int inner;            // I
  const void* gate_up;  // [N, 2 I] dtype, gate first
  void* out;            // [N, I] dtype
};

cudaError_t silu_mul(const SiluMulParams& params, cudaStream_t stream);

}  // namespace ptd::cuda
