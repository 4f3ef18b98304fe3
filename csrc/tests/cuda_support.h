// What the tests of the CUDA kernels share: arrays in a dtype, and the orders of threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "fibers.h"
#include "ptd/cuda/types.h"

namespace cuda_test {

using cuda_shim::Order;
using ptd::cuda::DType;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Order kOrders[] = {Order::kForward, Order::kReverse, Order::kRandom};
constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

inline int size_of(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

// How much the dtype may be off, of 1.
inline double rounding_of(DType dtype) {
  return dtype == DType::kFloat32 ? 1.2e-7 : dtype == DType::kFloat16 ? 9.8e-4 : 7.8e-3;
}

// An array in device memory, which is memory here, to the byte.
class Array {
 public:
  Array(DType dtype, std::int64_t size)
      : dtype_(dtype), size_(size), bytes_(static_cast<std::size_t>(size * size_of(dtype))) {}

  std::int64_t size() const { return size_; }
  void* data() { return bytes_.data(); }
  const std::vector<unsigned char>& bytes() const { return bytes_; }

  float get(std::int64_t i) const {
    const unsigned char* at = bytes_.data() + i * size_of(dtype_);
    std::uint16_t half = 0;
    float wide = 0;
    std::memcpy(&half, at, 2);
    if (dtype_ == DType::kFloat32) std::memcpy(&wide, at, 4);
    return dtype_ == DType::kFloat32   ? wide
           : dtype_ == DType::kFloat16 ? __half2float({half})
                                       : __bfloat162float({half});
  }
  void set(std::int64_t i, float value) {
    unsigned char* at = bytes_.data() + i * size_of(dtype_);
    const std::uint16_t half =
        dtype_ == DType::kFloat16 ? __float2half_rn(value).bits : __float2bfloat16_rn(value).bits;
    if (dtype_ == DType::kFloat32) {
      std::memcpy(at, &value, 4);
    } else {
      std::memcpy(at, &half, 2);
    }
  }
  // Value `i` as the dtype holds it.
  float rounded(float value) const {
    Array one(dtype_, 1);
    one.set(0, value);
    return one.get(0);
  }
  void fill(float value) {
    for (std::int64_t i = 0; i < size_; ++i) set(i, value);
  }
  void fill_random(std::mt19937& rng, float scale = 1.0f) {
    std::uniform_real_distribution<float> uniform(-scale, scale);
    for (std::int64_t i = 0; i < size_; ++i) set(i, uniform(rng));
  }
  // `n` elements from `from` of `source` to `to`.
  void copy(std::int64_t to, const Array& source, std::int64_t from, std::int64_t n) {
    const int size = size_of(dtype_);
    std::memcpy(bytes_.data() + to * size, source.bytes_.data() + from * size,
                static_cast<std::size_t>(n * size));
  }
  bool same(std::int64_t at, const Array& other, std::int64_t other_at, std::int64_t n) const {
    const int size = size_of(dtype_);
    return std::memcmp(bytes_.data() + at * size, other.bytes_.data() + other_at * size,
                       static_cast<std::size_t>(n * size)) == 0;
  }

 private:
  DType dtype_;
  std::int64_t size_;
  std::vector<unsigned char> bytes_;
};

}  // namespace cuda_test
