// Ancestor sets of a step's rows: bit j of row i says that row i may attend to row j of the tree.
#pragma once

#include <array>
#include <cstdint>

#include "ptd/types.h"

namespace ptd {

// Words a row needs for n nodes (1 to 4).
constexpr int mask_words(int n_nodes) { return (n_nodes + 63) / 64; }

// A fixed 256-bit set; words beyond mask_words(n) stay zero and are not copied into the plan.
struct AncestorMask {
  std::array<std::uint64_t, kMaxMaskWords> words{};

  void set(int bit) { words[bit >> 6] |= std::uint64_t{1} << (bit & 63); }
  bool test(int bit) const { return (words[bit >> 6] >> (bit & 63)) & 1u; }
};

}  // namespace ptd
