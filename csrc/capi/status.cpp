// Exceptions as statuses, and their messages.
#include <new>
#include <string>

#include "handle.h"

namespace ptd::capi {
namespace {

// The one thing that is not a handle's: like errno, each thread has its own.
thread_local Message last_error;

}  // namespace

ptd_status fail(ptd_session* session, ptd_status status, const char* message) noexcept {
  last_error.set(message);
  if (session != nullptr) session->error.set(message);
  return status;
}

ptd_status fail_with_exception(ptd_session* session) noexcept {
  try {
    throw;
  } catch (const WrongOrder& e) {
    return fail(session, PTD_ERROR_ORDER, e.what());
  } catch (const InvalidArgument& e) {
    return fail(session, PTD_ERROR_ARGUMENT, e.what());
  } catch (const NonFiniteLogits& e) {
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

void require_running(const ptd_session& s, const char* function) {
  const char* before = nullptr;
  if (s.state == State::kIdle) before = "no request has begun";
  if (s.state == State::kFinished) before = "the request has ended";
  if (s.state == State::kFailed) before = "the request has failed";
  if (before == nullptr) return;
  throw WrongOrder(std::string(function) + ": " + before + "; call ptd_session_begin first.");
}

std::int32_t finish_reason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return PTD_FINISH_STOP;
    case FinishReason::kLength:
      return PTD_FINISH_LENGTH;
    case FinishReason::kNone:
      break;
  }
  return PTD_RUNNING;
}

const char* thread_error() noexcept { return last_error.text(); }

}  // namespace ptd::capi

const char* ptd_last_error(void) { return ptd::capi::thread_error(); }

const char* ptd_session_error(const ptd_session* session) {
  return session != nullptr ? session->error.text() : "";
}
