// Sessions with every drafter. A caller that keeps to the rules gets the tokens of plain decoding,
// whatever the options, the limits and the prompt are. One that does not (any prompt, any output,
// calls in any order) gets an exception of the documented kinds and nothing else.
#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <typeinfo>
#include <vector>

#include "drafters.h"
#include "input.h"
#include "ptd/session.h"

namespace {

using ptd::Session;
using ptd::TokenId;
using Tokens = std::vector<TokenId>;

constexpr int kVocab = 37;

// A model over two tokens of context; `kind` chooses how repetitive its text is.
TokenId next_of(int kind, TokenId before, TokenId last) {
  const auto mixed = static_cast<std::uint32_t>(before) * 7u +
                     static_cast<std::uint32_t>(last) * 3u +
                     static_cast<std::uint32_t>(before) * static_cast<std::uint32_t>(last);
  return static_cast<TokenId>(mixed % static_cast<std::uint32_t>(2 + kind % (kVocab - 1)));
}

// The output block of a step: a row's next token, then its top_k successors or -1.
Tokens answers(const Session& session, int kind, int top_k) {
  const auto& tree = session.tree();
  const auto committed = session.tokens();
  Tokens output;
  for (int row = 0; row < tree.size(); ++row) {
    TokenId before = committed.size() > 1 ? committed[committed.size() - 2] : 0;
    if (row > 0) before = tree.token(tree.parent(row));
    const TokenId next = next_of(kind, before, tree.token(row));
    output.push_back(next);
    for (int k = 0; k < top_k; ++k) output.push_back(k % 3 == 2 ? -1 : (next + k) % kVocab);
  }
  return output;
}

Tokens plain(Tokens tokens, int kind, int max_new, int max_seq_len, const Tokens& stop_ids) {
  const std::size_t prompt = tokens.size();
  while (static_cast<int>(tokens.size() - prompt) < max_new &&
         static_cast<int>(tokens.size()) < max_seq_len) {
    const TokenId before = tokens.size() > 1 ? tokens[tokens.size() - 2] : 0;
    tokens.push_back(next_of(kind, before, tokens.back()));
    if (std::find(stop_ids.begin(), stop_ids.end(), tokens.back()) != stop_ids.end()) break;
  }
  return {tokens.begin() + static_cast<long>(prompt), tokens.end()};
}

void honest(ptd_fuzz::Input& input, const std::shared_ptr<ptd::Drafter>& drafter, int vocab_size) {
  const int kind = input.byte();
  Tokens prompt(static_cast<std::size_t>(input.between(1, 40)));
  for (TokenId& token : prompt) token = input.between(0, kVocab - 1);
  ptd::SessionParams params;
  params.max_new_tokens = input.between(0, 60);
  if (input.one_in(3)) params.stop_ids = {input.between(0, kVocab - 1)};
  ptd::SessionLimits limits;
  limits.max_seq_len = static_cast<int>(prompt.size()) + input.between(1, 80);
  limits.max_path = input.between(1, 64);
  limits.top_k = drafter->needs().top_k + input.between(0, 2);
  limits.max_nodes = input.between(1, ptd::kMaxTreeNodes);
  limits.vocab_size = vocab_size;
  if (input.one_in(2)) limits.node_buckets = {1, 16, 64, 256};
  Session session(prompt, drafter, params, limits);
  if (!session.finished() && drafter->needs().prompt_outputs) {
    Tokens outputs((prompt.size() - 1) * static_cast<std::size_t>(1 + limits.top_k), 1);
    session.observe_prompt(0, outputs);
  }
  std::vector<std::uint64_t> block(session.plan_bytes() / sizeof(std::uint64_t));
  while (!session.finished()) {
    const int bucket =
        session.plan(reinterpret_cast<unsigned char*>(block.data()), session.plan_bytes());
    EXPECT(session.tree().size() <= bucket && session.tree().size() <= limits.max_nodes);
    for (int row = 0; row < session.tree().size(); ++row) {
      EXPECT(session.kv_len() + session.tree().depth(row) < limits.max_seq_len);
    }
    const auto step = session.commit(answers(session, kind, limits.top_k));
    EXPECT(step.tokens.size() >= 1);
  }
  const auto got = session.output_tokens();
  const Tokens expected =
      plain(prompt, kind, params.max_new_tokens, limits.max_seq_len, params.stop_ids);
  EXPECT(Tokens(got.begin(), got.end()) == expected);
}

// Ids a runtime might hand over: none of them a token of the model, perhaps.
TokenId any_token(ptd_fuzz::Input& input) { return input.wild(-2, kVocab + 2); }

void careless(ptd_fuzz::Input& input, const std::shared_ptr<ptd::Drafter>& drafter,
              int vocab_size) {
  Tokens prompt(static_cast<std::size_t>(input.between(0, 30)));
  for (TokenId& token : prompt) token = any_token(input);
  ptd::SessionParams params;
  params.max_new_tokens = input.wild(0, 40);
  params.temperature = input.one_in(2) ? 0.0f : 1.0f;
  ptd::SessionLimits limits;
  limits.max_seq_len = input.wild(1, 90);
  limits.max_path = input.wild(1, 70);
  limits.top_k = input.one_in(2) ? drafter->needs().top_k : input.between(-1, 9);
  limits.max_nodes = input.wild(1, ptd::kMaxTreeNodes);
  limits.vocab_size = vocab_size;
  for (int n = input.between(0, 3); n > 0; --n) {
    limits.node_buckets.push_back(input.wild(1, ptd::kMaxTreeNodes));
  }
  Session session(prompt, drafter, params, limits);
  std::vector<std::uint64_t> block(session.plan_bytes() / sizeof(std::uint64_t));
  auto* const bytes = reinterpret_cast<unsigned char*>(block.data());
  for (int calls = 0; !input.empty() && calls < 60; ++calls) {
    try {
      switch (input.between(0, 3)) {
        case 0: {
          const std::size_t size = session.plan_bytes();
          session.plan(bytes, input.one_in(8) ? static_cast<std::size_t>(input.byte()) : size);
          break;
        }
        case 1: {
          const auto rows = static_cast<std::size_t>(std::max(1, session.tree().size()));
          Tokens output(rows * static_cast<std::size_t>(1 + limits.top_k));
          if (input.one_in(8)) output.resize(input.byte());
          for (TokenId& token : output) token = any_token(input);
          session.commit(output);
          break;
        }
        case 2: {
          const auto rows = static_cast<std::size_t>(std::max(1, session.tree().size()));
          const Tokens output(rows * static_cast<std::size_t>(1 + limits.top_k), 3);
          const std::vector<double> probs(rows * 5, input.between(0, 3) / 3.0);
          session.commit_recursive(output, probs, input.wild(0, 6));
          break;
        }
        default: {
          Tokens outputs(static_cast<std::size_t>(input.between(0, 40)), any_token(input));
          session.observe_prompt(input.wild(0, 30), outputs);
        }
      }
    } catch (const ptd::InvalidArgument&) {
    } catch (const ptd::NonFiniteLogits&) {
    } catch (const std::logic_error& error) {
      EXPECT(typeid(error) == typeid(std::logic_error));  // a call out of turn, no vector's at()
    }
    EXPECT(session.kv_len() + 1 == static_cast<int>(session.tokens().size()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ptd_fuzz::Input input(data, size);
  const auto drafter = ptd_fuzz::draw_drafter(input);
  if (drafter == nullptr) return 0;
  // Of one model each: a drafter may keep the tokens of a session for the next.
  const int vocab_size = input.one_in(2) ? 0 : kVocab;
  for (int requests = input.between(1, 3); requests > 0; --requests) {
    const bool keeps_to_the_rules = !input.one_in(2);
    try {
      (keeps_to_the_rules ? honest : careless)(input, drafter, vocab_size);
    } catch (const ptd::InvalidArgument& error) {
      if (keeps_to_the_rules) std::fprintf(stderr, "refused: %s\n", error.what());
      EXPECT(!keeps_to_the_rules);
    }
  }
  return 0;
}
