// Many sessions in many threads, each with a drafter of its own, through both interfaces; and what
// happens where two threads share what they must not. Under ThreadSanitizer (make test-tsan) a
// state that sessions shared would be a finding.
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "ptd/ptd.h"
#include "ptd/ptd_drafter.h"
#include "ptd/session.h"

namespace {

using ptd::TokenId;

constexpr int kThreads = 6;
constexpr int kVocab = 97;

TokenId toy_next(TokenId last, int salt) { return (last * 7 + salt) % kVocab; }

std::vector<TokenId> expected(int salt, int count) {
  std::vector<TokenId> text(1, salt);
  for (int i = 0; i < count; ++i) text.push_back(toy_next(text.back(), salt));
  return {text.begin() + 1, text.end()};
}

std::vector<TokenId> decode_in_cxx(int salt, int count) {
  ptd::SessionParams params;
  params.max_new_tokens = count;
  ptd::SessionLimits limits;
  limits.max_seq_len = 500;
  limits.vocab_size = kVocab;
  ptd::Session session({salt}, std::make_shared<ptd::PTDDrafter>(ptd::PTDOptions{}), params,
                       limits);
  std::vector<std::uint64_t> block(session.plan_bytes() / 8);
  std::vector<TokenId> output;
  while (!session.finished()) {
    session.plan(reinterpret_cast<unsigned char*>(block.data()), block.size() * 8);
    output.clear();
    for (const TokenId token : session.tree().tokens()) output.push_back(toy_next(token, salt));
    session.commit(output);
  }
  const auto tokens = session.output_tokens();
  return {tokens.begin(), tokens.end()};
}

ptd_session* create(const std::string& drafter) {
  ptd_config config{};
  config.struct_size = sizeof config;
  config.vocab_size = kVocab;
  config.max_seq_len = 500;
  ptd_session* session = nullptr;
  CHECK(ptd_session_create(drafter.data(), drafter.size(), nullptr, 0, &config, &session) ==
        PTD_OK);
  return session;
}

// One request; false where another thread is in the handle. The tokens belong to the handle, so
// they are read only where it is this thread's: `out` may be null.
bool decode_in_c(ptd_session* session, int salt, int count, std::vector<TokenId>* out) {
  ptd_needs needs{};
  needs.struct_size = sizeof needs;
  if (ptd_session_needs(session, &needs) != PTD_OK) return false;
  std::vector<std::uint64_t> block(needs.plan_bytes / 8);
  ptd_request request{};
  request.struct_size = sizeof request;
  request.max_new_tokens = count;
  const std::int32_t prompt[1] = {salt};
  if (ptd_session_begin(session, prompt, 1, &request) != PTD_OK) return false;
  ptd_step step{};
  step.struct_size = sizeof step;
  if (out != nullptr) out->clear();
  do {
    ptd_plan plan{};
    plan.struct_size = sizeof plan;
    if (ptd_session_plan(session, block.data(), block.size() * 8, &plan) != PTD_OK) return false;
    std::vector<TokenId> ids(static_cast<std::size_t>(plan.n_nodes * needs.output_stride), 0);
    for (int row = 0; row < plan.n_nodes; ++row) {
      ids[static_cast<std::size_t>(row * needs.output_stride)] =
          toy_next(plan.token_ids[row], salt);
    }
    if (ptd_session_commit(session, ids.data(), ids.size(), &step) != PTD_OK) return false;
    if (out != nullptr) out->insert(out->end(), step.tokens, step.tokens + step.n_tokens);
  } while (step.finish_reason == PTD_RUNNING);
  return true;
}

template <class Work>
void in_threads(const Work& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

void sessions_share_nothing() {
  in_threads([](int i) { CHECK(decode_in_cxx(i, 200) == expected(i, 200)); });
  const char* names[] = {"ptd", "suffix", "hybrid", "lookahead", "self-draft", "token-recycling"};
  in_threads([&](int i) {
    ptd_session* session = create(names[i]);
    std::vector<TokenId> out;
    for (int request = 0; request < 2; ++request) {
      CHECK(decode_in_c(session, i, 100, &out));
      CHECK(out == expected(i, 100));
    }
    // This thread's own mistake, and nobody else's message.
    CHECK(ptd_session_begin(session, nullptr, static_cast<std::size_t>(i) + 600, nullptr) ==
          PTD_ERROR_ARGUMENT);
    CHECK(std::strstr(ptd_last_error(), "request=null") != nullptr);
    ptd_session_destroy(session);
  });
}

// Not allowed, and safe all the same: whoever comes too late is refused.
void a_handle_in_several_threads_is_busy() {
  ptd_session* session = create("ptd");
  in_threads([&](int i) {
    for (int round = 0; round < 20; ++round) {
      (void)decode_in_c(session, i, 20, nullptr);
    }
  });
  std::vector<TokenId> out;
  CHECK(decode_in_c(session, 3, 50, &out));
  CHECK(out == expected(3, 50));
  ptd_session_destroy(session);
}

}  // namespace

int main() {
  sessions_share_nothing();
  a_handle_in_several_threads_is_busy();
}
