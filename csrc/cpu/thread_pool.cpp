#include "ptd/cpu/thread_pool.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <system_error>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ptd::cpu {
namespace {

// Between two steps of a generation the host works for some 100 us; a sleeping thread would take
// half of that to wake up. Longer pauses are slept through.
constexpr auto kSpinBeforeSleep = std::chrono::microseconds(200);
constexpr int kSpinsPerCheck = 64;
// A thread that waits longer than this for its team gives its processor to whoever has it.
constexpr int kSpinsBeforeYield = 4000;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

template <typename Done>
void spin_until(Done done) {
  int spins = 0;
  while (!done()) {
    if (++spins < kSpinsBeforeYield) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

// Default arithmetic for as long as it lives: a library may have this thread flush small numbers.
class DefaultArithmetic {
 public:
#if defined(__x86_64__)
  DefaultArithmetic() : held_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultArithmetic() { _mm_setcsr(held_); }

 private:
  unsigned held_;
#else
  DefaultArithmetic() {}
#endif
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;
};

}  // namespace

ThreadPool::ThreadPool(int threads) : size_(threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw std::invalid_argument("num_threads=" + std::to_string(threads) +
                                " is not valid: allowed is an integer from 1 to " +
                                std::to_string(kMaxThreads) + ".");
  }
  threads_.reserve(static_cast<std::size_t>(size_));
  try {
    for (int i = 1; i < size_; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    const std::size_t given = threads_.size() + 1;
    stop();
    throw std::runtime_error("num_threads=" + std::to_string(threads) +
                             " is not possible here: the system gave " + std::to_string(given) +
                             " (" + error.what() + "). Pass a smaller number.");
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    const std::lock_guard<std::mutex> lock(sleep_);
    stop_ = true;
    round_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(const std::function<void(int)>& job) {
  const std::lock_guard<std::mutex> turn(turn_);
  const DefaultArithmetic arithmetic;
  if (size_ == 1) {
    job(0);
    return;
  }
  job_ = &job;
  working_.store(size_ - 1, std::memory_order_relaxed);
  bool wake = false;
  {
    const std::lock_guard<std::mutex> lock(sleep_);
    round_.fetch_add(1, std::memory_order_release);
    wake = sleeping_ > 0;
  }
  if (wake) wake_.notify_all();
  job(0);
  spin_until([this] { return working_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::barrier() {
  if (size_ == 1) return;
  const unsigned phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  spin_until([&] { return phase_.load(std::memory_order_acquire) != phase; });
}

void ThreadPool::work(int index) {
  const DefaultArithmetic arithmetic;
  unsigned seen = 0;
  while (true) {
    const auto start = std::chrono::steady_clock::now();
    while (round_.load(std::memory_order_acquire) == seen) {
      for (int i = 0; i < kSpinsPerCheck; ++i) pause();
      if (std::chrono::steady_clock::now() - start < kSpinBeforeSleep) continue;
      std::unique_lock<std::mutex> lock(sleep_);
      ++sleeping_;
      wake_.wait(lock, [&] { return round_.load(std::memory_order_relaxed) != seen; });
      --sleeping_;
    }
    ++seen;
    if (stop_) return;
    (*job_)(index);
    working_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace ptd::cpu
