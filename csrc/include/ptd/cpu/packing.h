// Weights laid out for the linear kernels: one block of memory a matrix.
#pragma once

#include <cstdint>

#include "ptd/cpu/kernels.h"

namespace ptd::cpu {

struct WeightShape {
  WeightFormat format;
  std::int64_t out_features, in_features;
  bool bias;
};

// Bytes of the block: panels, then scales (kInt8), then the bias (fp32).
std::int64_t packed_bytes(const WeightShape& shape);

// Where the parts of a block lie. `block` must be aligned to 64 bytes.
LinearWeight packed_view(const WeightShape& shape, const unsigned char* block);

// Packs weight [out, in], rows contiguous, and bias [out], both of `source` type. Quantises to
// kInt8 by output (scale = largest |w| / 127), to kInt4 by 32 inputs (minimum and (maximum -
// minimum) / 15). Throws std::invalid_argument for sizes below 1 and for a kInt8 or kInt4 weight
// that is not finite.
void pack_weight(const WeightShape& shape, DType source, const void* weight, const void* bias,
                 unsigned char* block);

// For memory that weights will be packed into, before anything is written to it: a step reads all
// weights once, in order, and pages of 4 KiB end the prefetch often. `memory` must begin at a page.
void ask_for_large_pages(void* memory, std::int64_t bytes);

}  // namespace ptd::cpu
