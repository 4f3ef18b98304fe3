#include "attention_layout.h"

namespace ptd::cpu {

std::int64_t attention_scratch_bytes(const AttentionArgs& args, int threads) {
  const AttentionLayout at = attention_layout(args);
  return at.threads + threads * at.thread_bytes;
}

}  // namespace ptd::cpu
