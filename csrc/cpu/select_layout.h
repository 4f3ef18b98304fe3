// Working memory of `select`, which select_scratch_bytes and the kernels agree on.
//
// The functions are static, not merely inline: the kernels are compiled for several processors, and
// of an inline function the linker keeps one copy for all.
#pragma once

#include <cstdint>

#include "ptd/cpu/kernels.h"

namespace ptd::cpu {

inline constexpr std::int64_t kSelectBlock = 512;  // ids whose masses are summed together

// Offsets of the parts of one thread's memory, each a multiple of 64.
struct SelectScratch {
  std::int64_t sums;    // double [blocks of the vocabulary]
  std::int64_t keys;    // uint64 [vocab] with a filter, and [successors] at least
  std::int64_t masses;  // float [vocab] with a filter
  std::int64_t total;
};

static constexpr std::int64_t whole_lines(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

static constexpr SelectScratch select_scratch(std::int64_t vocab, std::int64_t successors,
                                              bool filter) {
  const std::int64_t blocks = (vocab + kSelectBlock - 1) / kSelectBlock;
  const std::int64_t candidates = filter ? vocab : 0;
  SelectScratch at{};
  at.keys = at.sums + whole_lines(8 * blocks);
  at.masses = at.keys + whole_lines(8 * (candidates > successors ? candidates : successors));
  at.total = at.masses + whole_lines(4 * candidates);
  return at;
}

}  // namespace ptd::cpu
