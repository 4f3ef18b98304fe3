// Instruction sets of the CPU kernels, chosen at run time by CPUID.
#pragma once

#include <string>

namespace ptd::cpu {

// Each level holds the ones below it (int8 dot products: VNNI from kAvx512Bf16 on).
enum class Isa { kScalar = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3, kAmx = 4 };
inline constexpr int kNumIsas = 5;

const char* isa_name(Isa isa);  // "scalar", "avx2", "avx512", "avx512_bf16", "amx"

// Empty if kernels for `isa` were compiled and this processor runs them, else the reason why not.
std::string isa_unavailable(Isa isa);

// The highest level that is available.
Isa best_isa();

// The level of that name; throws std::invalid_argument listing the names, or the reason why it is
// not available here. "auto" is best_isa().
Isa isa_by_name(const std::string& name);

}  // namespace ptd::cpu
