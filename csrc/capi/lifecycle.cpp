// A handle from its configuration to its end, and what is told of it and to it between requests.
#include <algorithm>
#include <limits>
#include <string>

#include "arguments.h"
#include "drafter_options.h"
#include "handle.h"

namespace capi = ptd::capi;
using capi::State;
using capi::WrongOrder;
using ptd::InvalidArgument;

namespace {

constexpr int kDefaultPath = 64;
constexpr int kMostSuccessors = 1024;
constexpr int kMostLength = 1 << 30;

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

}  // namespace

ptd_status ptd_session_create(const char* drafter, size_t drafter_size, const char* options,
                              size_t options_size, const ptd_config* config,
                              ptd_session** session) {
  return capi::call([&] {
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
  return capi::call_on(session, [&](ptd_session& s) {
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
  return capi::call_on(session, [&](ptd_session& s) {
    if (s.state == State::kRunning || s.state == State::kPlanned) {
      throw WrongOrder("ptd_session_set_step_cost: a request runs; call it between two requests.");
    }
    if (n < 1 || n > ptd::kMaxTreeNodes) {
      throw InvalidArgument::for_field("n", n, "1 to " + std::to_string(ptd::kMaxTreeNodes));
    }
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
