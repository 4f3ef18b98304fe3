#include "ptd/cpu/kernels.h"

#include <stdexcept>
#include <string>

#include "linear_layout.h"

namespace ptd::cpu {

namespace scalar {
extern const Kernels kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kTable;
}
namespace avx512 {
extern const Kernels kTable;
}
namespace avx512_bf16 {
extern const Kernels kTable;
}
namespace amx {
extern const Kernels kTable;
}
#endif

const Kernels& kernels(Isa isa) {
  const std::string reason = isa_unavailable(isa);
  if (!reason.empty()) {
    throw std::invalid_argument(std::string("isa='") + isa_name(isa) +
                                "' is not available here: " + reason + ".");
  }
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return avx2::kTable;
    case Isa::kAvx512:
      return avx512::kTable;
    case Isa::kAvx512Bf16:
      return avx512_bf16::kTable;
    case Isa::kAmx:
      return amx::kTable;
#endif
    default:
      return scalar::kTable;
  }
}

std::int64_t linear_scratch_bytes(const LinearWeight& weight, int rows, int threads) {
  return linear_scratch(weight, rows, threads).total;
}

}  // namespace ptd::cpu
