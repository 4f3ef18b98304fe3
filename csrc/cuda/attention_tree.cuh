// Kernel 2: what is the row's own, and the sum of it all.
//
// A row's keys, in the order of plain decoding: prefix rows at positions 0 .. P - 1, then its
// ancestors and itself (a chain without a mask: the rows up to it). Tiles below P / kTile are done;
// those from there to the row's own position, one or two as a rule, are gathered here by position,
// and the chain of their split's state goes on where kernel 1 left it. Then the splits are joined
// in rising order:
//
//   M' = max(M, m), L = L 2^(M - M') + l 2^(m - M'), A likewise; out = A / L
//
// Positions behind the row's own are masked as in an incomplete last tile of plain decoding, which
// this tile is. Cache rows that no position names are never read, whatever they hold.
//
// Grid: (16 heads of a group, row, key/value head). The warps compute the same weights, 16 heads
// each, and a share of the columns of the output: a group seldom fills one tile of 16 rows, so this
// is cheaper than to exchange the weights. Traffic: 2 kTile D element_size bytes a tile, out of L2,
// and the states of the splits.
#pragma once

#include "attention_math.cuh"

namespace ptd::cuda {

// The rows of a step that a row sees, in rising order, which is that of their positions.
class VisibleRows {
 public:
  // `shared`: [kMaxTreeRows]; the caller makes the block wait before the first look-up.
  __device__ VisibleRows(const TreeAttentionParams& p, int row, std::int32_t* shared, int threads)
      : rows_(p.mask == nullptr ? nullptr : shared) {
    if (rows_ == nullptr) {
      count_ = row + 1;
      return;
    }
    const int words = static_cast<int>(ceil_div(p.rows, 64));
    const std::uint64_t* mask = p.mask + static_cast<std::int64_t>(row) * words;
    for (int w = 0; w < words; ++w) {
      const int left = p.rows - 64 * w;
      const std::uint64_t bits = left < 64 ? mask[w] & ((std::uint64_t{1} << left) - 1) : mask[w];
      for (int j = threadIdx.x; j < 64; j += threads) {
        const std::uint64_t below = bits & ((std::uint64_t{1} << j) - 1);
        if ((bits >> j & 1) != 0) shared[count_ + __popcll(below)] = 64 * w + j;
      }
      count_ += __popcll(bits);
    }
  }
  __device__ int count() const { return count_; }
  __device__ int operator[](int i) const { return rows_ == nullptr ? i : rows_[i]; }

 private:
  const std::int32_t* rows_;
  int count_ = 0;
};

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(32 * AttentionLayout<T, kHeadDim>::kParts, 1)
    attention_tree_kernel(TreeAttentionParams p, SplitStates states) {
  using Layout = AttentionLayout<T, kHeadDim>;
  constexpr int kTile = Layout::kTile, kStride = Layout::kStride;
  constexpr int kThreads = 32 * Layout::kParts, kGroups = kHeadDim / 8 / Layout::kParts;
  static_assert(kGroups % 2 == 0);

  const int row = static_cast<int>(blockIdx.y), kv_head = static_cast<int>(blockIdx.z);
  const int group = p.q_heads / p.kv_heads;
  const int first_head = 16 * static_cast<int>(blockIdx.x);
  const std::int64_t prefix = *p.prefix_len + p.prefix_offset;

  T* q_tile = reinterpret_cast<T*>(dynamic_shared());                            // [16, kStride]
  T* k_tile = q_tile + 16 * kStride;                                             // [kTile, kStride]
  T* v_tile = k_tile + Layout::kTileElements;                                    // [kTile, kStride]
  auto* seen = reinterpret_cast<std::int32_t*>(v_tile + Layout::kTileElements);  // [kMaxTreeRows]
  const VisibleRows visible(p, row, seen, kThreads);
  const std::int64_t end = prefix + visible.count();  // one behind the row's position
  __syncthreads();

  const T* q = static_cast<const T*>(p.q) +
               (static_cast<std::int64_t>(row) * p.q_heads + kv_head * group) * kHeadDim;
  for (int c = threadIdx.x; c < 16 * Layout::kChunks; c += kThreads) {
    const int head = min_of(first_head + c / Layout::kChunks, group - 1);
    const int at = c % Layout::kChunks * Layout::kPerChunk;
    copy_async_16(q_tile + c / Layout::kChunks * kStride + at, q + head * kHeadDim + at, true);
  }
  const T* k_cache = static_cast<const T*>(p.k_cache) + kv_head * p.kv_head_stride;
  const T* v_cache = static_cast<const T*>(p.v_cache) + kv_head * p.kv_head_stride;
  const auto gather = [&](std::int64_t tile) {
    for (int c = threadIdx.x; c < kTile * Layout::kChunks; c += kThreads) {
      const int t = c / Layout::kChunks, at = c % Layout::kChunks * Layout::kPerChunk;
      const std::int64_t position = tile * kTile + t;
      const bool valid = position < end;
      const std::int64_t source = position < prefix ? position
                                  : valid ? prefix + visible[static_cast<int>(position - prefix)]
                                          : 0;
      const std::int64_t from = source * p.kv_row_stride + at;
      copy_async_16(k_tile + t * kStride + at, k_cache + from, valid);
      copy_async_16(v_tile + t * kStride + at, v_cache + from, valid);
    }
    commit_copies();
  };
  const std::int64_t first_tile = prefix / kTile, last_tile = (end - 1) / kTile;
  gather(first_tile);  // under way while the splits before it are joined

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_column = 8 * kGroups * warp + lane % 4 * 2;
  SoftmaxState state, joined;
  float acc[kGroups][4], total[kGroups][4];
  clear(total);
  // What kernel 1 left of a split.
  const auto load = [&](std::int64_t split) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = min_of(first_head + lane / 4 + 8 * r, group - 1);
      const std::int64_t slot = states.slot(split, kv_head, row * group + head);
      const float2 scale = *states.scale(slot);
      state.largest[r] = scale.x;
      state.sum[r] = scale.y;
      const float* values = states.values(slot) + first_column;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const float2 pair = *reinterpret_cast<const float2*>(values + 8 * g);
        acc[g][2 * r] = pair.x;
        acc[g][2 * r + 1] = pair.y;
      }
    }
  };
  const auto join = [&] {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float largest = fmaxf(joined.largest[r], state.largest[r]);
      const float base = base_of(largest);
      const float old_scale = exp2_approx(__fsub_rn(joined.largest[r], base));
      const float new_scale = exp2_approx(__fsub_rn(state.largest[r], base));
      joined.largest[r] = largest;
      joined.sum[r] = __fmaf_rn(joined.sum[r], old_scale, __fmul_rn(state.sum[r], new_scale));
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          total[g][i] = __fmaf_rn(total[g][i], old_scale, __fmul_rn(acc[g][i], new_scale));
        }
      }
    }
  };

  const std::int64_t open_split = split_of(first_tile, p.split_tiles);
#pragma unroll 2
  for (std::int64_t split = 0; split < open_split; ++split) {
    load(split);
    join();
  }
  state = SoftmaxState{};
  clear(acc);
  if (first_tile_of(open_split, p.split_tiles) != first_tile) load(open_split);

  const float score_scale = __fmul_rn(p.scale, 1.44269504f);
#pragma unroll 1
  for (std::int64_t tile = first_tile; tile <= last_tile; ++tile) {
    if (tile != first_tile) {
      __syncthreads();  // everybody is done with the tile before
      gather(tile);
      if (first_tile_of(split_of(tile, p.split_tiles), p.split_tiles) == tile) {
        join();
        state = SoftmaxState{};
        clear(acc);
      }
    }
    wait_copies<0>();
    __syncthreads();
    const int valid = static_cast<int>(min_of<std::int64_t>(end - tile * kTile, kTile));
    WarpTile<T, kHeadDim>::step(q_tile, k_tile, v_tile + 8 * kGroups * warp, score_scale, valid,
                                state, acc);
  }
  wait_copies<0>();  // of a row that sees not even itself: no tile waited for them
  join();

  T* out = static_cast<T*>(p.out);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int head = first_head + lane / 4 + 8 * r;
    if (head >= group) continue;
    T* to = out + (static_cast<std::int64_t>(row) * p.q_heads + kv_head * group + head) * kHeadDim +
            first_column;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        to[8 * g + j] = from_float<T>(__fdiv_rn(total[g][2 * r + j], joined.sum[r]));
      }
    }
  }
}

}  // namespace ptd::cuda
