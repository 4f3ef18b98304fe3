// Memory of the steady state, counted by operators new of our own.
//
// A drafter's tables grow with what they hold and keep their memory. So plan() and commit() of a
// request like the one before ask for none, those of another text for what its tables have more,
// and those of a first request for little once the tables have grown.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "check.h"
#include "ptd/hybrid_drafter.h"
#include "ptd/lookahead_drafter.h"
#include "ptd/prompt_lookup_drafter.h"
#include "ptd/ptd_drafter.h"
#include "ptd/self_draft_drafter.h"
#include "ptd/session.h"
#include "ptd/suffix_drafter.h"
#include "ptd/token_recycling_drafter.h"

namespace {

thread_local long allocations = 0;

void* counted(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size != 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using ptd::TokenId;

constexpr int kVocab = 211;
constexpr int kSteps = 400;

// A text with repetitions of different lengths, another one for each salt.
TokenId toy_next(TokenId before, TokenId last, int salt) {
  const int mixed = before * 31 + last * 17 + salt;
  return mixed % 5 == 0 ? mixed % kVocab : mixed % 13;
}

struct Counts {
  long first_half = 0;  // of a request's tokens
  long second_half = 0;
};

// What plan() and commit() of one request ask for.
Counts decode(const std::shared_ptr<ptd::Drafter>& drafter, int salt) {
  const int top_k = drafter->needs().top_k;
  ptd::SessionParams params;
  params.max_new_tokens = kSteps;
  ptd::SessionLimits limits;
  limits.max_seq_len = 1000;
  limits.top_k = top_k;
  limits.vocab_size = kVocab;
  ptd::Session session({1, 2, 3, salt, 2, 3}, drafter, params, limits);
  std::vector<std::uint64_t> block(session.plan_bytes() / sizeof(std::uint64_t));
  std::vector<TokenId> output(static_cast<std::size_t>(ptd::kMaxTreeNodes) *
                              static_cast<std::size_t>(1 + top_k));
  Counts counts;
  while (!session.finished()) {
    const bool early = static_cast<int>(session.output_tokens().size()) < kSteps / 2;
    const long before_plan = allocations;
    session.plan(reinterpret_cast<unsigned char*>(block.data()),
                 block.size() * sizeof(std::uint64_t));
    const auto& tree = session.tree();
    const auto text = session.tokens();
    for (int row = 0; row < tree.size(); ++row) {
      const TokenId before = row > 0 ? tree.token(tree.parent(row)) : text[text.size() - 2];
      TokenId* out = output.data() + static_cast<std::ptrdiff_t>(row) * (1 + top_k);
      out[0] = toy_next(before, tree.token(row), salt);
      for (int k = 0; k < top_k; ++k) out[1 + k] = (out[0] + k) % kVocab;
    }
    session.commit(output);
    (early ? counts.first_half : counts.second_half) += allocations - before_plan;
  }
  return counts;
}

struct Case {
  const char* name;
  std::shared_ptr<ptd::Drafter> drafter;
};

std::vector<Case> cases() {
  ptd::PTDOptions recycled;
  recycled.recycle_verified = true;
  recycled.expansion = ptd::Expansion::kTopK;
  ptd::HybridOptions drafted;
  drafted.max_draft_nodes = 12;
  drafted.auto_budget = true;
  ptd::LookaheadOptions with_prompt;
  with_prompt.prompt_ngrams = true;
  return {
      {"none", std::make_shared<ptd::AutoregressiveDrafter>()},
      {"ptd", std::make_shared<ptd::PTDDrafter>(ptd::PTDOptions{})},
      {"ptd, recycled, top-k", std::make_shared<ptd::PTDDrafter>(recycled)},
      {"prompt-lookup", std::make_shared<ptd::PromptLookupDrafter>(ptd::PromptLookupOptions{})},
      {"token-recycling",
       std::make_shared<ptd::TokenRecyclingDrafter>(ptd::TokenRecyclingOptions{})},
      {"suffix", std::make_shared<ptd::SuffixDrafter>(ptd::SuffixOptions{})},
      {"lookahead", std::make_shared<ptd::LookaheadDrafter>(with_prompt)},
      {"self-draft", std::make_shared<ptd::SelfDraftDrafter>(ptd::SelfDraftOptions{})},
      {"hybrid", std::make_shared<ptd::HybridDrafter>(ptd::HybridOptions{})},
      {"hybrid, drafted, auto", std::make_shared<ptd::HybridDrafter>(drafted)},
  };
}

}  // namespace

int main() {
  constexpr long kGrowth = 16;  // doublings of a few tables
  for (const Case& c : cases()) {
    const Counts first = decode(c.drafter, 0);
    const Counts again = decode(c.drafter, 0);
    const Counts other = decode(c.drafter, 1);
    std::printf("%-24s first %ld + %ld, the same again %ld + %ld, another %ld + %ld\n", c.name,
                first.first_half, first.second_half, again.first_half, again.second_half,
                other.first_half, other.second_half);
    CHECK(again.first_half + again.second_half == 0);
    CHECK(other.first_half + other.second_half <= kGrowth);
    CHECK(first.second_half <= kGrowth);
  }
}
