// The instructions that csrc/cuda/ptx.cuh wraps, as a warp of fibers carries them out.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "fibers.h"

namespace ptd::cuda {

inline unsigned char* dynamic_shared() { return cuda_shim::shared_memory(); }

inline float exp2_approx(float x) { return std::exp2(x); }

inline void copy_async_16(void* to, const void* from, bool valid) {
  cuda_shim::copy_async(to, valid ? from : nullptr);
}
inline void commit_copies() { cuda_shim::commit_copies(); }
template <int kGroupsLeft>
void wait_copies() {
  cuda_shim::wait_copies(kGroupsLeft);
}

// Lane 8 j + i names row i of matrix j; lane l receives elements 2 (l % 4), +1 of row l / 4 of
// every matrix or, transposed, of column l / 4.
template <bool kTransposed>
void load_matrices(std::uint32_t (&to)[4], const void* row) {
  cuda_shim::Slot mine{cuda_shim::kLoadMatrix, {}};
  std::memcpy(mine.words, &row, sizeof(row));
  const cuda_shim::Slot* slots = cuda_shim::exchange(mine);
  const int lane = cuda_shim::lane();
  for (int j = 0; j < 4; ++j) {
    std::uint16_t pair[2];
    for (int k = 0; k < 2; ++k) {
      const int along = 2 * (lane % 4) + k, across = lane / 4;
      const std::uint16_t* source;
      std::memcpy(&source, slots[8 * j + (kTransposed ? along : across)].words, sizeof(source));
      pair[k] = source[kTransposed ? across : along];
    }
    std::memcpy(&to[j], pair, 4);
  }
}
inline void ldmatrix_x4(std::uint32_t (&to)[4], const void* row) { load_matrices<false>(to, row); }
inline void ldmatrix_x4_trans(std::uint32_t (&to)[4], const void* row) {
  load_matrices<true>(to, row);
}

inline float widen(std::uint16_t bits, __nv_bfloat16) { return __bfloat162float({bits}); }
inline float widen(std::uint16_t bits, __half) { return __half2float({bits}); }

// d (16 x 8) += a (16 x 16) b (16 x 8), fragments as the PTX manual lays them out. Every element is
// one chain over k.
template <typename T>
void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  const cuda_shim::Slot* slots =
      cuda_shim::exchange({cuda_shim::kMma, {a[0], a[1], a[2], a[3], b0, b1}});
  const int lane = cuda_shim::lane();
  const auto half_of = [&](int owner, int word, int k) {
    return widen(static_cast<std::uint16_t>(slots[owner].words[word] >> (16 * (k & 1))), T{});
  };
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int upper = k / 8, quad = k % 8 / 2;
      d[i] += half_of(4 * (row % 8) + quad, row / 8 + 2 * upper, k) *
              half_of(4 * column + quad, 4 + upper, k);
    }
  }
}

}  // namespace ptd::cuda
