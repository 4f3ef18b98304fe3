// PromptDraws: tokens drawn from a request's prompt. The numbers depend on the seed and on how many
// were drawn since the request began, so a request drafts alike whatever came before it.
#pragma once

#include <algorithm>
#include <vector>

#include "ptd/rng.h"
#include "ptd/types.h"

namespace ptd {

class PromptDraws {
 public:
  explicit PromptDraws(std::uint64_t seed) : seed_(seed) {}

  void begin(Span<const TokenId> prompt) {
    prompt_.assign(prompt.begin(), prompt.end());
    draws_ = 0;
  }
  double uniform() { return philox_uniform(seed_, draws_++); }  // in [0, 1)
  TokenId token() {
    const auto n = prompt_.size();
    const auto at = static_cast<std::size_t>(uniform() * static_cast<double>(n));
    return prompt_[std::min(at, n - 1)];
  }

 private:
  std::uint64_t seed_;
  std::vector<TokenId> prompt_;
  std::uint64_t draws_ = 0;
};

}  // namespace ptd
