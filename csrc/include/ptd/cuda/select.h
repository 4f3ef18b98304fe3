// The next token of every row of logits, and the ids of its largest logits.
#pragma once

#include <cstdint>

#include "ptd/cuda/types.h"

namespace ptd::cuda {

enum class SelectMode : int { kGreedy = 0, kSample = 1, kFilter = 2 };

inline constexpr int kMaxVocab = 1 << 18;
inline constexpr int kMaxSuccessors = 256;

// next[i, 0] is the argmax (ties to the lowest id) where mode is kGreedy, temperature[i] is 0 or
// i >= n_verify; elsewhere it is drawn by inverse CDF in id order: the first id whose cumulative
// mass exceeds uniform[i] * total. -1 where the largest logit is not finite or the row holds NaN.
// next[i, 1..K] are the ids of the K largest logits, largest first, equal ones by id; those behind
// the smallest set that reaches sampling[3] (in (0, 1)) of the mass at temperature 1 are -1.
struct SelectParams {
  DType dtype;
  SelectMode mode;
  int rows;                    // N
  int vocab;                   // ids below it count, 1 to kMaxVocab
  int n_verify;                // rows below it may sample
  int successors;              // K, 0 to min(vocab, kMaxSuccessors)
  std::int64_t logits_stride;  // elements
  std::int64_t next_stride;    // elements
  const void* logits;          // [N, vocab] dtype, strided
  const float* temperature;    // [N], read where rows may be drawn, as uniform
  const float* uniform;        // [N], in [0, 1)
  const float* sampling;       // [4]: top_k, top_p, min_p (kFilter), top_p of the successors
  std::int32_t* next;          // [N, 1 + K], strided
};

cudaError_t select(const SelectParams& params, cudaStream_t stream);

}  // namespace ptd::cuda
