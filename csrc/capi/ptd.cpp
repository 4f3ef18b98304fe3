// The functions of ptd.h: they check, call the core and turn exceptions into statuses.
#include "ptd/ptd.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>

#include "arguments.h"
#include "drafter_options.h"
#include "messages.h"
#include "ptd/session.h"

#define PTD_TEXT_OF(x) #x
#define PTD_TEXT(x) PTD_TEXT_OF(x)

namespace {

using ptd::InvalidArgument;
using ptd::Span;
using ptd::TokenId;
namespace capi = ptd::capi;

constexpr int kDefaultPath = 64;
constexpr int kMostSuccessors = 1024;
constexpr int kMostLength = 1 << 30;

enum class State { kIdle, kRunning, kPlanned, kFinished, kFailed };

// A call that does not follow the one before.
struct WrongOrder : std::logic_error {
  using std::logic_error::logic_error;
};

}  // namespace

struct ptd_session {
  std::shared_ptr<ptd::Drafter> drafter;
  ptd::SessionLimits limits;
  std::size_t plan_bytes = 0;
  std::optional<ptd::Session> session;
  State state = State::kIdle;
  bool planned_once = false;
  int bucket = 0;
  std::atomic<bool> busy{false};
  capi::Message error;
};

namespace {

// The one thing that is not a handle's: like errno, each thread has its own.
thread_local capi::Message last_error;

ptd_status fail(ptd_session* session, ptd_status status, const char* message) noexcept {
  last_error.set(message);
  if (session != nullptr) session->error.set(message);
  return status;
}

// The status of the exception at hand, with its message.
ptd_status fail_with_exception(ptd_session* session) noexcept {
  try {
    throw;
  } catch (const WrongOrder& e) {
    return fail(session, PTD_ERROR_ORDER, e.what());
  } catch (const InvalidArgument& e) {
    return fail(session, PTD_ERROR_ARGUMENT, e.what());
  } catch (const ptd::NonFiniteLogits& e) {
    return fail(session, PTD_ERROR_NOT_FINITE, e.what());
  } catch (const std::bad_alloc&) {
    return fail(session, PTD_ERROR_MEMORY, "no memory is left for this call");
  } catch (const std::length_error&) {
    return fail(session, PTD_ERROR_MEMORY, "no memory is left for this call");
  } catch (const std::exception& e) {
    return fail(session, PTD_ERROR_INTERNAL, e.what());
  } catch (...) {
    return fail(session, PTD_ERROR_INTERNAL, "an unknown exception");
  }
}

// A call that needs no handle.
template <class Work>
ptd_status call(const Work& work) noexcept {
  try {
    work();
    return PTD_OK;
  } catch (...) {
    return fail_with_exception(nullptr);
  }
}

// A call on a handle, which is this thread's until it ends.
template <class Work>
ptd_status call_on(ptd_session* session, const Work& work) noexcept {
  if (session == nullptr) {
    return fail(nullptr, PTD_ERROR_ARGUMENT,
                "session=null is not valid: allowed is a handle of ptd_session_create.");
  }
  if (session->busy.exchange(true, std::memory_order_acquire)) {
    return fail(nullptr, PTD_ERROR_BUSY,
                "session is in a call of another thread: give each thread its own handle.");
  }
  ptd_status status = PTD_OK;
  try {
    work(*session);
  } catch (...) {
    status = fail_with_exception(session);
  }
  session->busy.store(false, std::memory_order_release);
  return status;
}

// Work of the core on arguments that were checked: what it throws fails the request, and what it
// finds invalid is our mistake.
template <class Work>
void run_core(ptd_session& s, const Work& work) {
  try {
    work();
  } catch (const InvalidArgument& e) {
    s.state = State::kFailed;
    throw std::logic_error(e.what());
  } catch (...) {
    s.state = State::kFailed;
    throw;
  }
}

std::int32_t finish_reason(ptd::FinishReason reason) {
  switch (reason) {
    case ptd::FinishReason::kStop:
      return PTD_FINISH_STOP;
    case ptd::FinishReason::kLength:
      return PTD_FINISH_LENGTH;
    case ptd::FinishReason::kNone:
      break;
  }
  return PTD_RUNNING;
}

std::size_t stride_of(const ptd_session& s) { return static_cast<std::size_t>(1 + s.limits.top_k); }

std::size_t rows_of(const ptd_session& s, int rows) {
  return static_cast<std::size_t>(rows) * stride_of(s);
}

ptd::SessionLimits checked_limits(const ptd_config& c) {
  capi::check_integer("vocab_size", c.vocab_size, 1, std::numeric_limits<std::int32_t>::max());
  capi::check_integer("max_seq_len", c.max_seq_len, 2, kMostLength);
  capi::check_integer("output_top_k", c.output_top_k, 0, kMostSuccessors);
  capi::check_integer("max_path", c.max_path, 0, ptd::kMaxTreeNodes);
  capi::check_integer("max_nodes", c.max_nodes, 0, ptd::kMaxTreeNodes);
  capi::check_reserved("reserved", c.reserved);
  ptd::SessionLimits limits;
  limits.max_seq_len = c.max_seq_len;
  limits.max_path = c.max_path == 0 ? kDefaultPath : c.max_path;
  limits.top_k = c.output_top_k;
  limits.max_nodes = c.max_nodes == 0 ? ptd::kMaxTreeNodes : c.max_nodes;
  limits.vocab_size = c.vocab_size;
  limits.node_buckets = capi::checked_list("node_buckets", c.node_buckets, c.n_node_buckets,
                                           ptd::kMaxTreeNodes, 1, ptd::kMaxTreeNodes);
  return limits;
}

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

void fill_plan(const ptd_session& s, unsigned char* block, ptd_plan& plan) {
  const auto layout = ptd::PlanLayout::of(s.bucket, s.limits.max_path);
  ptd::PlanHeader header;
  std::memcpy(&header, block + layout.header.offset, sizeof header);
  const auto ints = [&](const ptd::PlanField& f) {
    return reinterpret_cast<const std::int32_t*>(block + f.offset);
  };
  const auto floats = [&](const ptd::PlanField& f) {
    return reinterpret_cast<const float*>(block + f.offset);
  };
  plan.bucket = s.bucket;
  plan.n_nodes = header.n_nodes;
  plan.n_verify = header.n_verify;
  plan.prefix_len = header.prefix_len;
  plan.n_commit = header.n_commit;
  plan.flags = header.flags;
  plan.mask_words = ptd::mask_words(s.bucket);
  plan.max_path = s.limits.max_path;
  plan.token_ids = ints(layout.token_ids);
  plan.positions = ints(layout.positions);
  plan.commit_src = ints(layout.commit_src);
  plan.temperature = floats(layout.temperature);
  plan.uniform = floats(layout.uniform);
  plan.sampling = floats(layout.sampling);
  plan.mask = reinterpret_cast<const std::uint64_t*>(block + layout.mask.offset);
}

void require_running(const ptd_session& s, const char* function) {
  const char* before = nullptr;
  if (s.state == State::kIdle) before = "no request has begun";
  if (s.state == State::kFinished) before = "the request has ended";
  if (s.state == State::kFailed) before = "the request has failed";
  if (before == nullptr) return;
  throw WrongOrder(std::string(function) + ": " + before + "; call ptd_session_begin first.");
}

}  // namespace

const char* ptd_version(void) {
  return PTD_TEXT(PTD_VERSION_MAJOR) "." PTD_TEXT(PTD_VERSION_MINOR) "." PTD_TEXT(
      PTD_VERSION_PATCH);
}

int32_t ptd_abi_version(void) { return PTD_ABI_VERSION; }

const char* ptd_last_error(void) { return last_error.text(); }

const char* ptd_session_error(const ptd_session* session) {
  return session != nullptr ? session->error.text() : "";
}

const char* ptd_drafter_names(void) { return capi::kDrafterNames; }

ptd_status ptd_drafter_options(const char* name, size_t name_size, char* buffer, size_t buffer_size,
                               size_t* n_needed) {
  return call([&] {
    if (n_needed != nullptr) {
      capi::check_pointer("n_needed", n_needed);
      *n_needed = 0;
    }
    const std::string text = capi::drafter_defaults(capi::checked_text("name", name, name_size));
    if (n_needed != nullptr) *n_needed = text.size() + 1;
    if (buffer == nullptr || buffer_size < text.size() + 1) {
      throw InvalidArgument::for_field(
          "buffer_size", static_cast<long long>(buffer_size),
          "at least " + std::to_string(text.size() + 1) + " bytes, and no null buffer");
    }
    std::memcpy(buffer, text.c_str(), text.size() + 1);
  });
}

ptd_status ptd_session_create(const char* drafter, size_t drafter_size, const char* options,
                              size_t options_size, const ptd_config* config,
                              ptd_session** session) {
  return call([&] {
    capi::check_pointer("session", session);
    *session = nullptr;
    capi::check_struct("config", config, "ptd_config");
    auto made = std::make_unique<ptd_session>();
    made->limits = checked_limits(*config);
    made->drafter = capi::make_drafter(
        capi::checked_text("drafter", drafter, drafter_size),
        capi::checked_text("options", options, options_size),
        capi::checked_list("eos_ids", config->eos_ids, config->n_eos_ids, capi::kMostIds, 0,
                           std::numeric_limits<std::int32_t>::max()));
    const int wanted = made->drafter->needs().top_k;
    if (made->limits.top_k == 0) made->limits.top_k = wanted;
    if (made->limits.top_k < wanted) {
      throw InvalidArgument::for_field(
          "output_top_k", made->limits.top_k,
          "at least the drafter's " + std::to_string(wanted) + ", or 0 for as many as it asks for");
    }
    // A request of no tokens: its checks and sizes without its work.
    ptd::SessionParams nothing;
    nothing.max_new_tokens = 0;
    const ptd::Session probe({0}, made->drafter, nothing, made->limits);
    made->plan_bytes = probe.plan_bytes();
    *session = made.release();
  });
}

void ptd_session_destroy(ptd_session* session) { delete session; }

ptd_status ptd_session_needs(ptd_session* session, ptd_needs* needs) {
  return call_on(session, [&](ptd_session& s) {
    capi::check_struct("needs", needs, "ptd_needs");
    const ptd::DrafterNeeds wanted = s.drafter->needs();
    needs->plan_bytes = s.plan_bytes;
    needs->max_nodes =
        std::min(1 + std::min(wanted.max_nodes, ptd::kMaxTreeNodes - 1), s.limits.max_nodes);
    // No step has more rows than the largest bucket.
    const auto& buckets = s.limits.node_buckets;
    if (!buckets.empty()) {
      needs->max_nodes =
          std::min(needs->max_nodes, *std::max_element(buckets.begin(), buckets.end()));
    }
    needs->output_stride = 1 + s.limits.top_k;
    needs->prompt_outputs = wanted.prompt_outputs ? 1 : 0;
    needs->step_cost = wanted.step_cost ? 1 : 0;
    needs->top_p = wanted.top_p;
    needs->reserved = 0;
  });
}

ptd_status ptd_session_set_step_cost(ptd_session* session, const int32_t* rows,
                                     const double* seconds, const double* seconds_per_token,
                                     size_t n) {
  return call_on(session, [&](ptd_session& s) {
    if (s.state == State::kRunning || s.state == State::kPlanned) {
      throw WrongOrder("ptd_session_set_step_cost: a request runs; call it between two requests.");
    }
    capi::check_integer("n", static_cast<long long>(std::min<size_t>(n, kMostLength)), 1,
                        ptd::kMaxTreeNodes);
    capi::check_pointer("rows", rows);
    capi::check_pointer("seconds", seconds);
    capi::check_pointer("seconds_per_token", seconds_per_token);
    for (size_t i = 0; i < n; ++i) {
      capi::check_integer("rows", rows[i], i == 0 ? 1 : rows[i - 1] + 1ll, ptd::kMaxTreeNodes);
      capi::check_number("seconds", seconds[i], 1e-12, 1e6);
      capi::check_number("seconds_per_token", seconds_per_token[i], 0.0, 1e6);
    }
    s.drafter->set_step_cost({rows, n}, {seconds, n}, {seconds_per_token, n});
  });
}

ptd_status ptd_session_begin(ptd_session* session, const int32_t* prompt, size_t n_prompt,
                             const ptd_request* request) {
  return call_on(session, [&](ptd_session& s) {
    capi::check_struct("request", request, "ptd_request");
    const auto most = static_cast<size_t>(s.limits.max_seq_len) - 1;
    if (n_prompt < 1 || n_prompt > most) {
      throw InvalidArgument::for_field("n_prompt", static_cast<long long>(n_prompt),
                                       "1 to " + std::to_string(most) + " (max_seq_len - 1)");
    }
    capi::check_pointer("prompt", prompt);
    capi::check_ids("prompt", prompt, n_prompt, s.limits.vocab_size, /*may_be_missing=*/false);
    ptd::SessionParams params = checked_params(*request, s.limits.vocab_size);
    std::vector<TokenId> tokens(prompt, prompt + n_prompt);
    ptd::SessionLimits limits = s.limits;
    run_core(s, [&] {
      s.session.emplace(std::move(tokens), s.drafter, std::move(params), std::move(limits));
    });
    s.state = s.session->finished() ? State::kFinished : State::kRunning;
    s.planned_once = false;
  });
}

ptd_status ptd_session_observe_prompt(ptd_session* session, size_t first, const int32_t* outputs,
                                      size_t n_outputs) {
  return call_on(session, [&](ptd_session& s) {
    require_running(s, "ptd_session_observe_prompt");
    if (s.planned_once) {
      throw WrongOrder(
          "ptd_session_observe_prompt: a step was planned; it comes before the first.");
    }
    const auto stride = stride_of(s);
    const auto most = static_cast<size_t>(s.session->prompt_len()) - 1;
    if (first > most) {
      throw InvalidArgument::for_field(
          "first", static_cast<long long>(first),
          "0 to " + std::to_string(most) + ", the prompt's last token");
    }
    if (n_outputs % stride != 0 || n_outputs / stride > most - first) {
      throw InvalidArgument::for_field("n_outputs", static_cast<long long>(n_outputs),
                                       "a multiple of output_stride=" + std::to_string(stride) +
                                           " up to " + std::to_string((most - first) * stride) +
                                           ", of rows before the prompt's last token");
    }
    if (n_outputs == 0) return;
    capi::check_pointer("outputs", outputs);
    capi::check_ids("outputs", outputs, n_outputs, s.limits.vocab_size, /*may_be_missing=*/true);
    run_core(s, [&] {
      s.session->observe_prompt(static_cast<int>(first), Span<const TokenId>(outputs, n_outputs));
    });
  });
}

ptd_status ptd_session_plan(ptd_session* session, void* block, size_t block_size, ptd_plan* plan) {
  return call_on(session, [&](ptd_session& s) {
    require_running(s, "ptd_session_plan");
    if (s.state == State::kPlanned) {
      throw WrongOrder(
          "ptd_session_plan: a step is planned already; call ptd_session_commit first.");
    }
    capi::check_struct("plan", plan, "ptd_plan");
    // Of 64-bit words: the mask is one of its fields.
    capi::check_pointer("block", static_cast<const std::uint64_t*>(block));
    if (block_size < s.plan_bytes) {
      throw InvalidArgument::for_field("block_size", static_cast<long long>(block_size),
                                       "at least " + std::to_string(s.plan_bytes) + " bytes");
    }
    auto* bytes = static_cast<unsigned char*>(block);
    run_core(s, [&] { s.bucket = s.session->plan(bytes, block_size); });
    s.state = State::kPlanned;
    s.planned_once = true;
    fill_plan(s, bytes, *plan);
  });
}

ptd_status ptd_session_commit(ptd_session* session, const int32_t* output, size_t n_output,
                              ptd_step* step) {
  return call_on(session, [&](ptd_session& s) {
    require_running(s, "ptd_session_commit");
    if (s.state != State::kPlanned) {
      throw WrongOrder("ptd_session_commit: no step is planned; call ptd_session_plan first.");
    }
    capi::check_struct("step", step, "ptd_step");
    const size_t least = rows_of(s, s.session->tree().size());
    const size_t most = rows_of(s, s.bucket);
    if (n_output < least || n_output > most) {
      throw InvalidArgument::for_field("n_output", static_cast<long long>(n_output),
                                       std::to_string(least) + " to " + std::to_string(most) +
                                           " ids, output_stride=" + std::to_string(stride_of(s)) +
                                           " a row");
    }
    capi::check_pointer("output", output);
    capi::check_ids("output", output, least, s.limits.vocab_size, /*may_be_missing=*/true);
    run_core(s, [&] {
      const ptd::StepResult result = s.session->commit(Span<const TokenId>(output, least));
      step->tokens = result.tokens.data();
      step->n_tokens = result.tokens.size();
      step->n_accepted = result.accepted;
    });
    step->finish_reason = finish_reason(s.session->finish_reason());
    s.state = s.session->finished() ? State::kFinished : State::kRunning;
  });
}

ptd_status ptd_session_output(ptd_session* session, const int32_t** tokens, size_t* n_tokens) {
  return call_on(session, [&](ptd_session& s) {
    capi::check_pointer("tokens", tokens);
    capi::check_pointer("n_tokens", n_tokens);
    const auto output = s.session ? s.session->output_tokens() : Span<const TokenId>();
    *tokens = output.data();
    *n_tokens = output.size();
  });
}

ptd_status ptd_session_stats(ptd_session* session, ptd_stats* stats) {
  return call_on(session, [&](ptd_session& s) {
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
      stats->finish_reason = finish_reason(s.session->finish_reason());
    }
  });
}
