#include "ptd/cpu/isa.h"

#include <array>
#include <cstdint>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace ptd::cpu {
namespace {

constexpr std::array<const char*, kNumIsas> kNames = {"scalar", "avx2", "avx512", "avx512_bf16",
                                                      "amx"};

#if defined(__x86_64__)

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf cpuid(unsigned leaf, unsigned subleaf) {
  Leaf r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

bool bit(unsigned word, int index) { return (word >> index & 1u) != 0; }

// Register states that the operating system saves: bit 1 SSE, 2 AVX, 5..7 AVX-512, 17..18 AMX.
std::uint64_t saved_states() {
  if (!bit(cpuid(1, 0).ecx, 27)) return 0;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<std::uint64_t>(high) << 32 | low;
}

// Linux hands out the 8 KiB of tile registers on request only, once for the whole process.
std::string request_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted ? "" : "the kernel does not grant AMX tile registers to this process";
#else
  return "AMX is used on Linux only";
#endif
}

std::string find_reason(Isa isa) {
  if (isa == Isa::kScalar) return "";
  const Leaf basic = cpuid(1, 0), extended = cpuid(7, 0), more = cpuid(7, 1);
  const std::uint64_t states = saved_states();
  const auto has_states = [&](std::uint64_t mask) { return (states & mask) == mask; };
  if (!bit(basic.ecx, 12) || !bit(extended.ebx, 5) || !has_states(0x6)) {
    return "this processor has no AVX2 with FMA";
  }
  if (isa == Isa::kAvx2) return "";
  const bool f = bit(extended.ebx, 16), dq = bit(extended.ebx, 17), bw = bit(extended.ebx, 30),
             vl = bit(extended.ebx, 31);
  if (!f || !dq || !bw || !vl || !has_states(0xe6)) {
    return "this processor has no AVX-512 (F, DQ, BW, VL)";
  }
  if (isa == Isa::kAvx512) return "";
  if (!bit(more.eax, 5) || !bit(extended.ecx, 11)) {
    return "this processor has no AVX-512 BF16 with VNNI";
  }
  if (isa == Isa::kAvx512Bf16) return "";
  if (!bit(extended.edx, 22) || !bit(extended.edx, 24) || !bit(extended.edx, 25) ||
      !has_states(0x60000)) {
    return "this processor has no AMX (BF16, INT8)";
  }
  return request_tiles();
}

#else

std::string find_reason(Isa isa) {
  return isa == Isa::kScalar ? "" : "not compiled for this kind of processor";
}

#endif

}  // namespace

const char* isa_name(Isa isa) { return kNames.at(static_cast<std::size_t>(isa)); }

std::string isa_unavailable(Isa isa) {
  // CPUID traps in a virtual machine, so it is asked once.
  static const std::array<std::string, kNumIsas> reasons = [] {
    std::array<std::string, kNumIsas> found;
    for (int i = 0; i < kNumIsas; ++i) {
      found[static_cast<std::size_t>(i)] = find_reason(static_cast<Isa>(i));
    }
    return found;
  }();
  return reasons.at(static_cast<std::size_t>(isa));
}

Isa best_isa() {
  int best = kNumIsas - 1;
  while (!isa_unavailable(static_cast<Isa>(best)).empty()) --best;
  return static_cast<Isa>(best);
}

Isa isa_by_name(const std::string& name) {
  if (name == "auto") return best_isa();
  std::string known = "auto";
  for (int i = 0; i < kNumIsas; ++i) {
    const Isa isa = static_cast<Isa>(i);
    known += std::string(", ") + isa_name(isa);
    if (name != isa_name(isa)) continue;
    const std::string reason = isa_unavailable(isa);
    if (reason.empty()) return isa;
    throw std::invalid_argument("isa='" + name + "' is not available here: " + reason + ".");
  }
  throw std::invalid_argument("isa='" + name + "' is not valid: allowed are " + known + ".");
}

}  // namespace ptd::cpu
