// Everything of a forward pass between the matrix products and the attention: norms, gates,
// rotation, embedding rows, and the move of accepted cache rows.
//
// These kernels read each element once or twice and stay within the first cache level; what counts
// is instructions an element, and that T is rounded where the torch backend rounds it.
#pragma once

#include <math.h>

#include <cstdint>
#include <cstring>

#include "linear_layout.h"
#include "ptd/cpu/kernels.h"
#include "simd.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

// Number of lanes of a chunk: all of them, or as many as remain at the end of a row.
struct AllLanes {};
template <typename T>
inline F32x16 load16(const T* p, AllLanes) {
  return load16(p);
}
template <typename T>
inline void store16(T* p, F32x16 a, AllLanes) {
  store16(p, a);
}

// Calls body(i, lanes) for the chunks of 16 elements from `begin` on.
template <typename Body>
inline void for_chunks(std::int64_t begin, std::int64_t end, const Body& body) {
  std::int64_t i = begin;
  for (; i + 16 <= end; i += 16) body(i, AllLanes{});
  if (i < end) body(i, static_cast<int>(end - i));
}

// This thread's part of a [rows, columns] array that is computed element by element: calls
// body(row, begin, end) for runs of columns that begin at multiples of 64 (whole cache lines).
template <typename Body>
inline void for_my_columns(std::int64_t rows, std::int64_t columns, Share share, const Body& body) {
  constexpr std::int64_t kRun = 64;
  const std::int64_t runs = (columns + kRun - 1) / kRun;
  const Range mine = share_of(rows * runs, share.index, share.count);
  for (std::int64_t at = mine.begin; at < mine.end;) {
    const std::int64_t row = at / runs, first = at % runs;
    const std::int64_t last = min_of(first + (mine.end - at), runs);
    body(row, first * kRun, min_of(last * kRun, columns));
    at += last - first;
  }
}

// 1 / root mean square. The squares go to four times sixteen sums, by their place in the row.
template <typename T>
inline float inverse_rms(const T* x, std::int64_t n, float eps) {
  F32x16 sums[4] = {zero16(), zero16(), zero16(), zero16()};
  const std::int64_t whole = n / 64 * 64;
  for (std::int64_t i = 0; i < whole; i += 64) {
    for (int k = 0; k < 4; ++k) {
      const F32x16 v = load16(x + i + 16 * k);
      sums[k] = fma(v, v, sums[k]);
    }
  }
  for_chunks(whole, n, [&](std::int64_t i, auto lanes) {
    const F32x16 v = load16(x + i, lanes);
    sums[0] = fma(v, v, sums[0]);
  });
  const float sum = sum16(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  return 1.0f / sqrtf(sum / static_cast<float>(n) + eps);
}

// The normalised lanes, rounded to T, times the weight; not yet rounded again.
template <typename T, typename Lanes>
inline F32x16 normalised(const T* x, F32x16 inverse, const T* weight, Lanes lanes) {
  return mul(rounded16<T>(mul(load16(x, lanes), inverse)), load16(weight, lanes));
}

template <typename T>
inline void add_rms_norm_of(const AddRmsNormArgs& a, Share share) {
  const Range mine = share_of(a.rows, share.index, share.count);
  const T* weight = static_cast<const T*>(a.weight);
  for (std::int64_t row = mine.begin; row < mine.end; ++row) {
    T* residual = static_cast<T*>(a.residual) + row * a.hidden;
    T* out = static_cast<T*>(a.out) + row * a.hidden;
    if (a.x != nullptr) {
      const T* x = static_cast<const T*>(a.x) + row * a.hidden;
      for_chunks(0, a.hidden, [&](std::int64_t i, auto lanes) {
        store16(residual + i, add(load16(residual + i, lanes), load16(x + i, lanes)), lanes);
      });
    }
    const F32x16 inverse = splat16(inverse_rms(residual, a.hidden, a.eps));
    for_chunks(0, a.hidden, [&](std::int64_t i, auto lanes) {
      store16(out + i, normalised(residual + i, inverse, weight + i, lanes), lanes);
    });
  }
}

// x / (1 + exp(-x)), by the exponential of -|x| alone, which cannot overflow.
inline F32x16 silu16(F32x16 x) {
  const F32x16 e = exp16(min16(x, sub(zero16(), x)));
  const F32x16 numerator = blend(less_mask(x, zero16()), x, mul(x, e));
  return div(numerator, add(splat16(1.0f), e));
}

template <typename T>
inline void silu_mul_of(const SiluMulArgs& a, Share share) {
  for_my_columns(a.rows, a.inner, share,
                 [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
                   const T* gate = static_cast<const T*>(a.gate_up) + row * 2 * a.inner;
                   T* out = static_cast<T*>(a.out) + row * a.inner;
                   for_chunks(begin, end, [&](std::int64_t i, auto lanes) {
                     const F32x16 gated = rounded16<T>(silu16(load16(gate + i, lanes)));
                     store16(out + i, mul(gated, load16(gate + a.inner + i, lanes)), lanes);
                   });
                 });
}

// One head: normalised if `norm` is not null, then rotated in pairs (d, d + head_dim / 2).
template <typename T>
inline void rotate_head(const RopeKvArgs& a, const T* x, const T* norm, const float* cosines,
                        T* out) {
  const int half = a.head_dim / 2;
  const float* sines = cosines + half;
  const F32x16 inverse = splat16(norm == nullptr ? 1.0f : inverse_rms(x, a.head_dim, a.eps));
  for_chunks(0, half, [&](std::int64_t d, auto lanes) {
    F32x16 first = load16(x + d, lanes), second = load16(x + half + d, lanes);
    if (norm != nullptr) {
      first = rounded16<T>(normalised(x + d, inverse, norm + d, lanes));
      second = rounded16<T>(normalised(x + half + d, inverse, norm + half + d, lanes));
    }
    const F32x16 c = load16(cosines + d, lanes), s = load16(sines + d, lanes);
    store16(out + d, fma(second, sub(zero16(), s), mul(first, c)), lanes);
    store16(out + half + d, fma(first, s, mul(second, c)), lanes);
  });
}

template <typename T>
inline void rope_kv_write_of(const RopeKvArgs& a, Share share) {
  const std::int64_t dim = a.head_dim, heads = a.q_heads + 2 * a.kv_heads;
  const T* q_norm = static_cast<const T*>(a.q_norm);
  const T* k_norm = static_cast<const T*>(a.k_norm);
  const Range mine = share_of(a.rows * heads, share.index, share.count);
  for (std::int64_t at = mine.begin; at < mine.end; ++at) {
    const std::int64_t row = at / heads, head = at % heads;
    const T* x = static_cast<const T*>(a.qkv) + at * dim;
    const float* cosines = a.cos_sin + a.positions[row] * dim;
    if (head < a.q_heads) {
      T* out = static_cast<T*>(a.q_out) + (row * a.q_heads + head) * dim;
      rotate_head(a, x, q_norm, cosines, out);
      continue;
    }
    const bool is_key = head < a.q_heads + a.kv_heads;
    const std::int64_t kv_head = (head - a.q_heads) % a.kv_heads;
    T* out = static_cast<T*>(is_key ? a.k_cache : a.v_cache) + kv_head * a.kv_head_stride +
             (*a.prefix_len + row) * dim;
    if (is_key) {
      rotate_head(a, x, k_norm, cosines, out);
    } else {
      std::memcpy(out, x, static_cast<std::size_t>(dim) * sizeof(T));
    }
  }
}

// Sources rise and none lies below its destination, so rows copied in order, in place, read each
// source before it is written over.
template <typename T>
inline void kv_commit_of(const KvCommitArgs& a, Share share) {
  const std::int64_t dim = a.head_dim;
  const std::int64_t first = *a.prefix_len - a.n_commit;
  const Range mine = share_of(std::int64_t{2} * a.layers * a.kv_heads, share.index, share.count);
  for (std::int64_t at = mine.begin; at < mine.end; ++at) {
    T* rows = static_cast<T*>(at % 2 == 0 ? a.k_cache : a.v_cache) + at / 2 * a.capacity * dim;
    for (int i = 0; i < a.n_commit; ++i) {
      const std::int64_t source = a.commit_src[i], target = first + i;
      if (source == target) continue;
      std::memcpy(rows + target * dim, rows + source * dim,
                  static_cast<std::size_t>(dim) * sizeof(T));
    }
  }
}

// Inputs [begin, end) of one output of a packed matrix; `begin` is a multiple of 64.
template <typename T>
inline void unpack_inputs(const LinearWeight& w, std::int64_t output, std::int64_t begin,
                          std::int64_t end, T* out) {
  const std::int64_t lane = output % kPanel;
  const unsigned char* panel = static_cast<const unsigned char*>(w.panels) +
                               output / kPanel * panel_bytes(w.format, w.in_padded);
  if (w.format == WeightFormat::kF32) {
    const float* values = reinterpret_cast<const float*>(panel) + lane;
    for (std::int64_t i = begin; i < end; ++i) out[i] = narrow<T>(values[i * kPanel]);
  } else if (w.format == WeightFormat::kBF16) {
    const bf16* values = reinterpret_cast<const bf16*>(panel) + 2 * lane;
    for (std::int64_t i = begin; i < end; ++i) {
      out[i] = narrow<T>(widen(values[i / 2 * 2 * kPanel + i % 2]));
    }
  } else if (w.format == WeightFormat::kInt8) {
    const std::int8_t* values = reinterpret_cast<const std::int8_t*>(panel) + 4 * lane;
    const float scale = w.scales[output];
    for (std::int64_t i = begin; i < end; ++i) {
      out[i] = narrow<T>(static_cast<float>(values[i / 4 * 4 * kPanel + i % 4]) * scale);
    }
  } else {
    for (std::int64_t i = begin; i < end; ++i) {
      const unsigned char* block = panel + i / kInt4Group * kInt4BlockBytes;
      const bf16* scales = reinterpret_cast<const bf16*>(block);
      const std::int64_t in_block = i % kInt4Group;
      const unsigned pair = block[2 * kPanel * sizeof(bf16) + in_block / 2 * kPanel + lane];
      const unsigned q = in_block % 2 == 0 ? pair & 15u : pair >> 4;
      out[i] =
          narrow<T>(static_cast<float>(q) * widen(scales[lane]) + widen(scales[kPanel + lane]));
    }
  }
}

template <typename T>
inline void embed_of(const EmbedArgs& a, Share share) {
  const std::int64_t hidden = a.table.in_features;
  for_my_columns(
      a.rows, hidden, share, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
        unpack_inputs(a.table, a.token_ids[row], begin, end, static_cast<T*>(a.out) + row * hidden);
      });
}

inline void add_rms_norm(const AddRmsNormArgs& a, Share share) {
  a.dtype == DType::kF32 ? add_rms_norm_of<float>(a, share) : add_rms_norm_of<bf16>(a, share);
}
inline void silu_mul(const SiluMulArgs& a, Share share) {
  a.dtype == DType::kF32 ? silu_mul_of<float>(a, share) : silu_mul_of<bf16>(a, share);
}
inline void rope_kv_write(const RopeKvArgs& a, Share share) {
  a.dtype == DType::kF32 ? rope_kv_write_of<float>(a, share) : rope_kv_write_of<bf16>(a, share);
}
inline void kv_commit(const KvCommitArgs& a, Share share) {
  a.dtype == DType::kF32 ? kv_commit_of<float>(a, share) : kv_commit_of<bf16>(a, share);
}
inline void embed(const EmbedArgs& a, DType dtype, Share share) {
  dtype == DType::kF32 ? embed_of<float>(a, share) : embed_of<bf16>(a, share);
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
