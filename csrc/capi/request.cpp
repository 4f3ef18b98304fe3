// A request: its beginning, its prompt, and what can be read of it at any time.
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "handle.h"

namespace capi = ptd::capi;
using capi::State;
using capi::WrongOrder;
using ptd::InvalidArgument;
using ptd::Span;
using ptd::TokenId;

namespace {

ptd::SessionParams checked_params(const ptd_request& r, int vocab_size) {
  constexpr auto kMost = std::numeric_limits<std::int32_t>::max();
  capi::check_integer("max_new_tokens", r.max_new_tokens, 0, kMost);
  capi::check_number("temperature", r.temperature, 0.0, 1e6);
  capi::check_integer("top_k", r.top_k, 0, 1 << 24);
  capi::check_number("top_p", r.top_p, 0.0, 1.0);
  capi::check_number("min_p", r.min_p, 0.0, 1.0);
  capi::check_reserved("reserved", r.reserved);
  ptd::SessionParams params;
  params.max_new_tokens = r.max_new_tokens;
  params.temperature = r.temperature;
  params.top_k = r.top_k;
  params.top_p = r.top_p > 0.0f ? r.top_p : 1.0f;
  params.min_p = r.min_p;
  params.seed = r.seed;
  params.stop_ids =
      capi::checked_list("stop_ids", r.stop_ids, r.n_stop_ids, capi::kMostIds, 0, vocab_size - 1);
  return params;
}

}  // namespace

ptd_status ptd_session_begin(ptd_session* session, const int32_t* prompt, size_t n_prompt,
                             const ptd_request* request) {
  return capi::call_on(session, [&](ptd_session& s) {
    capi::check_struct("request", request, "ptd_request");
    const auto most = static_cast<size_t>(s.limits.max_seq_len) - 1;
    if (n_prompt < 1 || n_prompt > most) {
      throw InvalidArgument::for_field("n_prompt", n_prompt,
                                       "1 to " + std::to_string(most) + " (max_seq_len - 1)");
    }
    capi::check_pointer("prompt", prompt);
    capi::check_ids("prompt", prompt, n_prompt, s.limits.vocab_size, /*may_be_missing=*/false);
    ptd::SessionParams params = checked_params(*request, s.limits.vocab_size);
    std::vector<TokenId> tokens(prompt, prompt + n_prompt);
    ptd::SessionLimits limits = s.limits;
    capi::run_core(s, [&] {
      s.session.emplace(std::move(tokens), s.drafter, std::move(params), std::move(limits));
    });
    s.state = s.session->finished() ? State::kFinished : State::kRunning;
    s.planned_once = false;
  });
}

ptd_status ptd_session_observe_prompt(ptd_session* session, size_t first, const int32_t* outputs,
                                      size_t n_outputs) {
  return capi::call_on(session, [&](ptd_session& s) {
    capi::require_running(s, "ptd_session_observe_prompt");
    if (s.planned_once) {
      throw WrongOrder(
          "ptd_session_observe_prompt: a step was planned; it comes before the first.");
    }
    const auto stride = capi::stride_of(s);
    const auto most = static_cast<size_t>(s.session->prompt_len()) - 1;
    if (first > most) {
      throw InvalidArgument::for_field(
          "first", first, "0 to " + std::to_string(most) + ", the prompt's last token");
    }
    if (n_outputs % stride != 0 || n_outputs / stride > most - first) {
      throw InvalidArgument::for_field("n_outputs", n_outputs,
                                       "a multiple of output_stride=" + std::to_string(stride) +
                                           " up to " + std::to_string((most - first) * stride) +
                                           ", of rows before the prompt's last token");
    }
    if (n_outputs == 0) return;
    capi::check_pointer("outputs", outputs);
    capi::check_ids("outputs", outputs, n_outputs, s.limits.vocab_size, /*may_be_missing=*/true);
    capi::run_core(s, [&] {
      s.session->observe_prompt(static_cast<int>(first), Span<const TokenId>(outputs, n_outputs));
    });
  });
}

ptd_status ptd_session_output(ptd_session* session, const int32_t** tokens, size_t* n_tokens) {
  return capi::call_on(session, [&](ptd_session& s) {
    capi::check_pointer("tokens", tokens);
    capi::check_pointer("n_tokens", n_tokens);
    const auto output = s.session ? s.session->output_tokens() : Span<const TokenId>();
    *tokens = output.data();
    *n_tokens = output.size();
  });
}

ptd_status ptd_session_stats(ptd_session* session, ptd_stats* stats) {
  return capi::call_on(session, [&](ptd_session& s) {
    capi::check_struct("stats", stats, "ptd_stats");
    *stats = ptd_stats{};
    stats->struct_size = sizeof *stats;
    if (s.state == State::kFailed) stats->finish_reason = PTD_FAILED;
    if (!s.session) return;
    const ptd::SessionStats& counted = s.session->stats();
    stats->steps = counted.steps;
    stats->tokens = counted.tokens;
    stats->hit_steps = counted.hit_steps;
    stats->hit_tokens = counted.hit_tokens;
    stats->candidate_nodes = counted.candidate_nodes;
    stats->draft_nodes = counted.draft_nodes;
    stats->accepted = counted.accepted;
    stats->prompt_len = s.session->prompt_len();
    stats->kv_len = s.session->kv_len();
    if (s.state != State::kFailed) {
      stats->finish_reason = capi::finish_reason(s.session->finish_reason());
    }
  });
}
