// Sizes that packing, the linear kernels and their callers agree on. Independent of the instruction
// set.
#pragma once

#include <cstdint>

#include "ptd/cpu/kernels.h"

namespace ptd::cpu {

inline constexpr int kPanel = 16;      // outputs of a panel: the lanes of a vector
inline constexpr int kUnit = 32;       // outputs that one piece of work covers: two panels
inline constexpr int kInt4Group = 32;  // inputs that share a scale and a minimum
// Inputs that share a scale once a row is quantised, for int8 weights: few outliers in a row would
// take the resolution of all the others.
inline constexpr int kInt8Group = 64;
// 16 scales and 16 minima in bf16, 16 x 32 nibbles.
inline constexpr std::int64_t kInt4BlockBytes = 2 * kPanel * 2 + kPanel * kInt4Group / 2;

// Static: this header is compiled for several instruction sets, and the linker would keep one copy.
static constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

static constexpr std::int64_t padded_inputs(WeightFormat format, std::int64_t in) {
  switch (format) {
    case WeightFormat::kF32:
      return in;
    case WeightFormat::kInt8:
      return round_up(in, 64);
    default:
      return round_up(in, 32);
  }
}

static constexpr std::int64_t panel_bytes(WeightFormat format, std::int64_t in_padded) {
  switch (format) {
    case WeightFormat::kF32:
      return in_padded * kPanel * 4;
    case WeightFormat::kBF16:
      return in_padded * kPanel * 2;
    case WeightFormat::kInt8:
      return in_padded * kPanel;
    case WeightFormat::kInt4:
      return in_padded / kInt4Group * kInt4BlockBytes;
  }
  return 0;
}

// Working memory of a linear op, in this order; every part begins at a multiple of 64 bytes.
struct LinearScratch {
  std::int64_t inputs;  // x as the kernel reads it: bf16 padded, or quantised
  std::int64_t scales;  // kInt8: float a row and group
  std::int64_t unit;    // kInt4: one unit of weights as bf16, for every thread
  std::int64_t total;
};

static inline LinearScratch linear_scratch(const LinearWeight& w, int rows, int threads) {
  LinearScratch at{};
  std::int64_t end = 0;
  const auto place = [&end](std::int64_t bytes) {
    const std::int64_t begin = end;
    end += round_up(bytes, 64);
    return begin;
  };
  // 16-bit elements: bf16, or the 16-bit form of int8 that processors without VNNI read.
  at.inputs = place(std::int64_t{2} * rows * w.in_padded);
  at.scales = place(std::int64_t{4} * rows * round_up(w.in_padded, kInt8Group) / kInt8Group);
  at.unit =
      place(w.format == WeightFormat::kInt4 ? std::int64_t{2} * kUnit * w.in_padded * threads : 0);
  at.total = end;
  return at;
}

}  // namespace ptd::cpu
