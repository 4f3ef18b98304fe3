// Counter-based random numbers: a value is a pure function of (seed, absolute position, draw), so
// speculative sampling meets the same numbers as plain sampling whatever the tree looked like.
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Philox4x32-10.
#pragma once

#include <array>
#include <cstdint>

namespace ptd {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

// Ten rounds of Philox4x32.
PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key);

// Uniform in [0, 1) with 24 bits: exact as float32.
// key = seed (low, high word), counter = (position low, position high, draw, 0), first output word.
// draw 0 is the coupled sampler's number; draws >= 1 belong to the recursive walk at that position.
float philox_uniform(std::uint64_t seed, std::uint64_t position, std::uint32_t draw = 0);

}  // namespace ptd
