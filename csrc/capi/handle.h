// What is behind a handle of ptd.h, and how every function of it runs: it checks, calls the core
// and turns exceptions into statuses.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>

#include "messages.h"
#include "ptd/ptd.h"
#include "ptd/session.h"

namespace ptd::capi {

enum class State { kIdle, kRunning, kPlanned, kFinished, kFailed };

// A call that does not follow the one before.
struct WrongOrder : std::logic_error {
  using std::logic_error::logic_error;
};

}  // namespace ptd::capi

struct ptd_session {
  std::shared_ptr<ptd::Drafter> drafter;
  ptd::SessionLimits limits;
  std::size_t plan_bytes = 0;
  std::optional<ptd::Session> session;
  ptd::capi::State state = ptd::capi::State::kIdle;
  bool planned_once = false;
  int bucket = 0;
  std::atomic<bool> busy{false};
  ptd::capi::Message error;
};

namespace ptd::capi {

// Leaves the message to the thread, and to the handle where there is one.
ptd_status fail(ptd_session* session, ptd_status status, const char* message) noexcept;

// The message of this thread's last call that failed.
const char* thread_error() noexcept;

// A call has failed: whether the request that runs has ended by it.
inline bool ends_request(ptd_status status) {
  return status != PTD_ERROR_ARGUMENT && status != PTD_ERROR_ORDER && status != PTD_ERROR_BUSY;
}

// The status of the exception at hand, with its message.
ptd_status fail_with_exception(ptd_session* session) noexcept;

// Throws WrongOrder where no request runs.
void require_running(const ptd_session& s, const char* function);

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
    const bool runs = session->state == State::kRunning || session->state == State::kPlanned;
    if (runs && ends_request(status)) session->state = State::kFailed;
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

// Of the C interface.
std::int32_t finish_reason(FinishReason reason);

inline std::size_t stride_of(const ptd_session& s) {
  return static_cast<std::size_t>(1 + s.limits.top_k);
}

inline std::size_t rows_of(const ptd_session& s, int rows) {
  return static_cast<std::size_t>(rows) * stride_of(s);
}

}  // namespace ptd::capi
