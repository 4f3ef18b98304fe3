// AMX tile instructions.
//
// Own wrappers in place of the compiler's: GCC 12 declares 8 of the 64 bytes that ldtilecfg reads,
// and no memory at all for tileloadd, so it may drop or move the stores before them.
#pragma once

#include <cstdint>

#include "simd.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

inline void load_tile_config(const TileConfig& config) {
  __asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory");
}
inline void release_tiles() { __asm__ volatile("tilerelease" : : : "memory"); }

template <int kTile>
inline void zero_tile() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
inline void load_tile(const void* p, std::int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void store_tile(void* p, std::int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}
// accumulator += rows times columns; pairs of bf16.
template <int kSum, int kRows, int kColumns>
inline void add_bf16_product() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
                   :
                   : "i"(kSum), "i"(kRows), "i"(kColumns));
}
// The same with fours of signed bytes.
template <int kSum, int kRows, int kColumns>
inline void add_int8_product() {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kRows), "i"(kColumns));
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
