// `select`: draws the next token of the rows that sample, and lists the largest logits of every
// row.
#pragma once

#include <cstdint>

#include "ptd/cpu/kernels.h"
#include "select_filter.h"
#include "select_layout.h"
#include "select_row.h"
#include "simd.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

// Restores the heap (the smallest key at the front) after heap[at] has grown.
inline void sift_down(std::uint64_t* heap, std::int64_t n, std::int64_t at) {
  const std::uint64_t key = heap[at];
  for (std::int64_t child; (child = 2 * at + 1) < n; at = child) {
    if (child + 1 < n && heap[child + 1] < heap[child]) ++child;
    if (heap[child] >= key) break;
    heap[at] = heap[child];
  }
  heap[at] = key;
}

// The ids of the k largest of n >= k logits, largest first, equal ones by id. `heap` holds k keys.
inline void largest_ids(const float* logits, std::int64_t n, int k, std::uint64_t* heap,
                        std::int32_t* ids) {
  for (int i = 0; i < k; ++i) heap[i] = key_of(logits[i], i);
  for (int i = k / 2 - 1; i >= 0; --i) sift_down(heap, k, i);
  F32x16 limit = splat16(logit_of(heap[0]));
  for (std::int64_t i = k; i < n; i += 16) {
    const int lanes = static_cast<int>(min_of<std::int64_t>(n - i, 16));
    const F32x16 x = lanes == 16 ? load16(logits + i) : load16(logits + i, lanes);
    // Of equal logits the earlier id is in the heap, and stays.
    std::uint32_t larger = less_mask(limit, x) & ((1u << lanes) - 1u);
    for (; larger != 0; larger &= larger - 1) {
      const int l = __builtin_ctz(larger);
      const std::uint64_t key = key_of(logits[i + l], i + l);
      if (key < heap[0]) continue;  // another lane has raised the limit
      heap[0] = key;
      sift_down(heap, k, 0);
      limit = splat16(logit_of(heap[0]));
    }
  }
  for (int left = k; left > 0; --left) {
    ids[left - 1] = static_cast<std::int32_t>(id_of(heap[0]));
    heap[0] = heap[left - 1];
    sift_down(heap, left - 1, 0);
  }
}

// Drops from the k largest ids, to -1, those behind the smallest set with at least `top_p` of the
// row's mass (at temperature 1). The first stays.
inline void drop_beyond(const float* logits, std::int64_t vocab, float top_p, int k, double* ends,
                        std::int32_t* ids) {
  const LogitRow row = logit_row(logits, vocab, 1.0f);
  const double limit = static_cast<double>(top_p) * sum_blocks<false>(row, {}, ends);
  double before = 0;
  for (int rank = 0; rank < k; ++rank) {
    if (rank > 0 && before >= limit) {
      ids[rank] = -1;
      continue;
    }
    float mass[16];
    store16(mass, masses16<false>(row, {}, ids[rank], 1));
    before += static_cast<double>(mass[0]);
  }
}

inline void select(const SelectArgs& a, Share share) {
  const SelectScratch at = select_scratch(a.vocab, a.successors, a.filter);
  unsigned char* memory = a.scratch + at.total * share.index;
  double* sums = reinterpret_cast<double*>(memory + at.sums);
  std::uint64_t* keys = reinterpret_cast<std::uint64_t*>(memory + at.keys);
  float* masses = reinterpret_cast<float*>(memory + at.masses);
  const Range mine = share_of(a.rows, share.index, share.count);
  for (std::int64_t i = mine.begin; i < mine.end; ++i) {
    const float* logits = a.logits + i * a.logits_stride;
    std::int32_t* next = a.next + i * a.next_stride;
    if (a.temperature[i] > 0 && next[0] >= 0) {
      const LogitRow row = logit_row(logits, a.vocab, a.temperature[i]);
      std::int64_t id = 0;
      if (a.filter) {
        const Kept kept = kept_ids(row, a.sampling, {keys, masses, 0}, sums);
        id = draw<true>(row, kept, a.uniform[i], sums);
      } else {
        id = draw<false>(row, {}, a.uniform[i], sums);
      }
      next[0] = static_cast<std::int32_t>(id);
    }
    if (a.successors > 0) {
      largest_ids(logits, a.vocab, a.successors, keys, next + 1);
      const float top_p = a.sampling[3];
      if (top_p > 0 && top_p < 1) {
        drop_beyond(logits, a.vocab, top_p, a.successors, sums, next + 1);
      }
    }
  }
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
