#include "ptd/cpu/kernels.h"
#include "select_layout.h"

namespace ptd::cpu {

std::int64_t select_scratch_bytes(const SelectArgs& args, int threads) {
  return select_scratch(args.vocab, args.successors, args.filter).total * threads;
}

}  // namespace ptd::cpu
