// One warp's step over one tile of keys and values: the only arithmetic of attention.
//
//   s = q K^T * (scale * log2 e)          16 rows x kTile positions
//   m' = max(m, s), p = 2^(s - m'), a = 2^(m - m')
//   l = l a + sum p,  acc = acc a + p V   p rounded to the element type
//
// Both kernels call it, on the same instructions in the same order, with every rounding spelled out
// so that no compiler contracts it differently in one of them: an element of a row is one function
// of that row's query and of the tile. That is what makes a tree row and the same token of plain
// decoding equal bit for bit.
//
// A warp holds 16 rows as mma.sync m16n8k16 lays them out, in fp32 too: lane l has rows l / 4 and
// l / 4 + 8, and of each group of 8 columns 2 (l % 4) and the next. An array [g][i] holds of group
// g: i = 0, 1 the first row's two columns, i = 2, 3 the second row's.
#pragma once

#include <cmath>

#include "attention_layout.cuh"

namespace ptd::cuda {

// What is subtracted from scores. Where nothing but minus infinity was seen, no weight is NaN.
__device__ __forceinline__ float base_of(float largest) {
  return largest == -INFINITY ? 0.0f : largest;
}

// Of the two rows of a lane.
struct SoftmaxState {
  float largest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};
};

template <typename T, int kHeadDim>
struct WarpTile {
  using Layout = AttentionLayout<T, kHeadDim>;
  static constexpr int kTile = Layout::kTile, kStride = Layout::kStride;
  static constexpr int kGroups = kTile / 8;
  static constexpr bool kTensorCores = sizeof(T) == 2;
  using Scores = float[kGroups][4];

  // scores = q K^T. q: 16 rows, k: kTile rows, both in shared memory.
  static __device__ __forceinline__ void dot(const T* q, const T* k, Scores& scores) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[g][i] = 0.0f;
    }
    if constexpr (kTensorCores) {
      const T* q_lane = q + lane % 16 * kStride + lane / 16 * 8;
      const T* k_lane = k + (lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8;
#pragma unroll
      for (int d = 0; d < kHeadDim; d += 16) {
        std::uint32_t a[4];
        ldmatrix_x4(a, q_lane + d);
#pragma unroll
        for (int g = 0; g < kGroups; g += 2) {
          std::uint32_t b[4];
          ldmatrix_x4(b, k_lane + 8 * g * kStride + d);
          mma_m16n8k16<T>(scores[g], a, b[0], b[1]);
          mma_m16n8k16<T>(scores[g + 1], a, b[2], b[3]);
        }
      }
    } else {
      const T* q_lane = q + lane / 4 * kStride;
      const T* k_lane = k + lane % 4 * 2 * kStride;
#pragma unroll 1
      for (int d = 0; d < kHeadDim; d += 4) {
        float a[2][4];
        load4(a[0], q_lane + d);
        load4(a[1], q_lane + 8 * kStride + d);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            float b[4];
            load4(b, k_lane + (8 * g + j) * kStride + d);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              scores[g][j] = __fmaf_rn(a[0][e], b[e], scores[g][j]);
              scores[g][2 + j] = __fmaf_rn(a[1][e], b[e], scores[g][2 + j]);
            }
          }
        }
      }
    }
  }

  // Turns scores into weights and the state into that behind the tile. The first `valid` positions
  // count. `rescale`: what acc has to be multiplied with, one for each row.
  static __device__ __forceinline__ void softmax(Scores& scores, float score_scale, int valid,
                                                 SoftmaxState& state, float (&rescale)[2]) {
    const int column = threadIdx.x % 4 * 2;
    float largest[2] = {state.largest[0], state.largest[1]};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool counts = 8 * g + column + i % 2 < valid;
        scores[g][i] = counts ? __fmul_rn(scores[g][i], score_scale) : -INFINITY;
        largest[i / 2] = fmaxf(largest[i / 2], scores[g][i]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 1));
      largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 2));
      const float base = base_of(largest[r]);
      rescale[r] = exp2_approx(__fsub_rn(state.largest[r], base));
      state.largest[r] = largest[r];
      largest[r] = base;
    }
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[g][i] = exp2_approx(__fsub_rn(scores[g][i], largest[i / 2]));
        sum[i / 2] = __fadd_rn(sum[i / 2], scores[g][i]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = __fadd_rn(sum[r], __shfl_xor_sync(kAllLanes, sum[r], 1));
      sum[r] = __fadd_rn(sum[r], __shfl_xor_sync(kAllLanes, sum[r], 2));
      state.sum[r] = __fmaf_rn(state.sum[r], rescale[r], sum[r]);
    }
  }

  // acc = acc * rescale + weights V, for kOut groups of 8 columns. v: kTile rows in shared memory,
  // from the first of those columns on.
  template <int kOut>
  static __device__ __forceinline__ void accumulate(const Scores& weights,
                                                    const float (&rescale)[2], const T* v,
                                                    float (&acc)[kOut][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int g = 0; g < kOut; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[g][i] = __fmul_rn(acc[g][i], rescale[i / 2]);
    }
    if constexpr (kTensorCores) {
      const T* v_lane = v + lane % 16 * kStride + lane / 16 * 8;
#pragma unroll
      for (int t = 0; t < kTile / 16; ++t) {
        const float (&left)[4] = weights[2 * t];
        const float (&right)[4] = weights[2 * t + 1];
        const std::uint32_t a[4] = {pack_pair<T>(left[0], left[1]), pack_pair<T>(left[2], left[3]),
                                    pack_pair<T>(right[0], right[1]),
                                    pack_pair<T>(right[2], right[3])};
#pragma unroll
        for (int g = 0; g < kOut; g += 2) {
          std::uint32_t b[4];
          ldmatrix_x4_trans(b, v_lane + 16 * t * kStride + 8 * g);
          mma_m16n8k16<T>(acc[g], a, b[0], b[1]);
          mma_m16n8k16<T>(acc[g + 1], a, b[2], b[3]);
        }
      }
    } else {
      const T* v_lane = v + lane % 4 * 2;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
#pragma unroll 1  // a fourth of the code, which nvcc takes a while over
        for (int quad = 0; quad < 4; ++quad) {
          const int owner = (lane & ~3) | quad;  // has these two positions of these rows
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const float first = __shfl_sync(kAllLanes, weights[group][j], owner);
            const float second = __shfl_sync(kAllLanes, weights[group][2 + j], owner);
            const T* values = v_lane + (8 * group + 2 * quad + j) * kStride;
#pragma unroll
            for (int g = 0; g < kOut; ++g) {
              float2 b;
              memcpy(&b, __builtin_assume_aligned(values + 8 * g, 8), sizeof(b));
              acc[g][0] = __fmaf_rn(first, b.x, acc[g][0]);
              acc[g][1] = __fmaf_rn(first, b.y, acc[g][1]);
              acc[g][2] = __fmaf_rn(second, b.x, acc[g][2]);
              acc[g][3] = __fmaf_rn(second, b.y, acc[g][3]);
            }
          }
        }
      }
    }
  }

  // The whole step.
  template <int kOut>
  static __device__ __forceinline__ void step(const T* q, const T* k, const T* v, float score_scale,
                                              int valid, SoftmaxState& state,
                                              float (&acc)[kOut][4]) {
    Scores scores;
    float rescale[2];
    dot(q, k, scores);
    softmax(scores, score_scale, valid, state, rescale);
    accumulate(scores, rescale, v, acc);
  }

 private:
  static __device__ __forceinline__ void load4(float (&to)[4], const T* from) {
    memcpy(to, __builtin_assume_aligned(from, 16), 16);
  }
};

template <int kOut>
__device__ __forceinline__ void clear(float (&acc)[kOut][4]) {
#pragma unroll
  for (int g = 0; g < kOut; ++g) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[g][i] = 0.0f;
  }
}

}  // namespace ptd::cuda
