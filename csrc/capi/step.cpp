// A step: planned into the caller's block, committed from the forward's output.
#include <cstring>
#include <string>

#include "arguments.h"
#include "handle.h"

namespace capi = ptd::capi;
using capi::State;
using capi::WrongOrder;
using ptd::InvalidArgument;
using ptd::Span;
using ptd::TokenId;

namespace {

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

}  // namespace

ptd_status ptd_session_plan(ptd_session* session, void* block, size_t block_size, ptd_plan* plan) {
  return capi::call_on(session, [&](ptd_session& s) {
    capi::require_running(s, "ptd_session_plan");
    if (s.state == State::kPlanned) {
      throw WrongOrder(
          "ptd_session_plan: a step is planned already; call ptd_session_commit first.");
    }
    capi::check_struct("plan", plan, "ptd_plan");
    // Of 64-bit words: the mask is one of its fields.
    capi::check_pointer("block", static_cast<const std::uint64_t*>(block));
    if (block_size < s.plan_bytes) {
      throw InvalidArgument::for_field("block_size", block_size,
                                       "at least " + std::to_string(s.plan_bytes) + " bytes");
    }
    auto* bytes = static_cast<unsigned char*>(block);
    capi::run_core(s, [&] { s.bucket = s.session->plan(bytes, block_size); });
    s.state = State::kPlanned;
    s.planned_once = true;
    fill_plan(s, bytes, *plan);
  });
}

ptd_status ptd_session_commit(ptd_session* session, const int32_t* output, size_t n_output,
                              ptd_step* step) {
  return capi::call_on(session, [&](ptd_session& s) {
    capi::require_running(s, "ptd_session_commit");
    if (s.state != State::kPlanned) {
      throw WrongOrder("ptd_session_commit: no step is planned; call ptd_session_plan first.");
    }
    capi::check_struct("step", step, "ptd_step");
    const size_t least = capi::rows_of(s, s.session->tree().size());
    const size_t most = capi::rows_of(s, s.bucket);
    if (n_output < least || n_output > most) {
      throw InvalidArgument::for_field(
          "n_output", n_output,
          std::to_string(least) + " to " + std::to_string(most) +
              " ids, output_stride=" + std::to_string(capi::stride_of(s)) + " a row");
    }
    capi::check_pointer("output", output);
    capi::check_ids("output", output, least, s.limits.vocab_size, /*may_be_missing=*/true);
    capi::run_core(s, [&] {
      const ptd::StepResult result = s.session->commit(Span<const TokenId>(output, least));
      step->tokens = result.tokens.data();
      step->n_tokens = result.tokens.size();
      step->n_accepted = result.accepted;
    });
    step->finish_reason = capi::finish_reason(s.session->finish_reason());
    s.state = s.session->finished() ? State::kFinished : State::kRunning;
  });
}
