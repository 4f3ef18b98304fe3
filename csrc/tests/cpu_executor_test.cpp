// Recording, replaying and running on a team of threads.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "ptd/cpu/executor.h"
#include "ptd/cpu/packing.h"
#include "ptd/cpu/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__unix__) && !defined(__SANITIZE_THREAD__)
#include <sys/wait.h>
#include <unistd.h>
#define PTD_TEST_FORK 1
#endif
#if defined(PTD_TEST_FORK) && !defined(__SANITIZE_ADDRESS__)
#include <sys/resource.h>
#define PTD_TEST_FEW_THREADS 1
#endif

namespace {

using namespace ptd::cpu;

struct alignas(64) Line {
  unsigned char bytes[64];
};

// y = x W^T with W = 2 * identity, in fp32.
struct Doubling {
  Doubling() : block(static_cast<std::size_t>(packed_bytes(kShape) / 64 + 1)) {
    std::vector<float> weight(32 * 32, 0.0f);
    for (std::size_t i = 0; i < 32; ++i) weight[33 * i] = 2.0f;
    auto* memory = reinterpret_cast<unsigned char*>(block.data());
    pack_weight(kShape, DType::kF32, weight.data(), nullptr, memory);
    view = packed_view(kShape, memory);
  }
  LinearArgs args(const float* x, float* out) const {
    LinearArgs a{};
    a.dtype = DType::kF32;
    a.rows = 1;
    a.x = x;
    a.weight = view;
    a.out = out;
    return a;
  }

  static constexpr WeightShape kShape{WeightFormat::kF32, 32, 32, false};
  std::vector<Line> block;
  LinearWeight view{};
};

void barrier_holds_all_until_the_last_has_come() {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    std::atomic<int> arrived{0}, early{0};
    for (int round = 0; round < 200; ++round) {
      pool.run([&](int) {
        for (int i = 1; i <= 3; ++i) {
          arrived.fetch_add(1);
          pool.barrier();
          if (arrived.load() < threads * (3 * round + i)) early.fetch_add(1);
          pool.barrier();
        }
      });
      CHECK(arrived.load() == threads * 3 * (round + 1));
    }
    CHECK(early.load() == 0);
  }
  CHECK_THROWS(ThreadPool(0), std::invalid_argument);
  CHECK_THROWS(ThreadPool(ThreadPool::kMaxThreads + 1), std::invalid_argument);
}

#if defined(PTD_TEST_FORK)
// Runs `body` in a process of its own; it fails if a check does, or if it hangs.
template <typename Body>
void in_a_fork(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    body();
    _exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

void a_system_that_is_short_of_threads_is_survived() {
#if defined(PTD_TEST_FEW_THREADS)
  in_a_fork([] {
    const rlimit memory = {std::uint64_t{1} << 30, std::uint64_t{1} << 30};
    CHECK(setrlimit(RLIMIT_AS, &memory) == 0);
    CHECK_THROWS(ThreadPool(ThreadPool::kMaxThreads), std::runtime_error);
    Executor(best_isa(), 2).silu_mul({});
  });
#endif
}

void a_fork_has_threads_of_its_own() {
#if defined(PTD_TEST_FORK)
  const Doubling doubling;
  std::vector<float> x(32, 3.0f), y(32, 0.0f);
  auto executor = std::make_unique<Executor>(best_isa(), 3);
  executor->begin_recording();
  executor->linear(doubling.args(x.data(), y.data()));
  const auto program = executor->end_recording();
  executor->run(*program);
  const auto check = [&] {
    y.assign(32, 0.0f);
    executor->run(*program);
    CHECK(y[31] == 6.0f);
    executor->linear(doubling.args(y.data(), x.data()));
    CHECK(x[0] == 12.0f);
    executor.reset();
  };
  // The parent's threads sleep, then one of them holds the executor's lock.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  in_a_fork(check);
  in_a_fork([&] { executor.reset(); });
  std::atomic<int> step{0};
  std::thread other([&] {
    executor->begin_recording();
    step.store(1);
    while (step.load() == 1) std::this_thread::yield();
    executor->end_recording();
  });
  while (step.load() == 0) std::this_thread::yield();
  in_a_fork(check);
  step.store(2);
  other.join();
  check();
#endif
}

void small_numbers_survive_whatever_the_caller_is_set_to() {
#if defined(__x86_64__)
  std::vector<float> gate_up(4 * 128, 1e-22f);
  for (const int threads : {1, 2}) {
    Executor executor(Isa::kScalar, threads);
    std::vector<float> out(4 * 64, 0.0f);
    SiluMulArgs a{};
    a.dtype = DType::kF32;
    a.rows = 4;
    a.inner = 64;
    a.gate_up = gate_up.data();
    a.out = out.data();
    const unsigned before = _mm_getcsr(), flushing = before | 0x8040u;
    _mm_setcsr(flushing);
    executor.silu_mul(a);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    CHECK((after & 0x8040u) == 0x8040u);
    for (const float value : out) CHECK(value > 0.0f);
  }
#endif
}

void nothing_happens_without_rows() {
  const Doubling doubling;
  Executor executor(best_isa(), 2);
  LinearArgs linear = doubling.args(nullptr, nullptr);
  linear.rows = 0;
  executor.linear(linear);
  HeadArgs head{};
  head.weight = doubling.view;
  head.limit = 32;
  executor.head(head);
  AttentionArgs attention{};
  attention.q_heads = attention.kv_heads = 1;
  attention.head_dim = 16;
  executor.attention(attention);
}

void operations_run_at_once_unless_recorded() {
  const Doubling doubling;
  Executor executor(best_isa(), 2);
  std::vector<float> x(32, 3.0f), y(32, 0.0f), z(32, 0.0f);
  executor.linear(doubling.args(x.data(), y.data()));
  CHECK(y[0] == 6.0f && y[31] == 6.0f);

  executor.begin_recording();
  executor.linear(doubling.args(x.data(), y.data()));
  executor.linear(doubling.args(y.data(), z.data()));
  const auto program = executor.end_recording();
  CHECK(z[0] == 0.0f && program->stages().size() == 2);
  for (const float value : {5.0f, 7.0f}) {
    x.assign(32, value);
    executor.run(*program);
    CHECK(z[0] == 4 * value && z[31] == 4 * value);
  }
}

void recordings_do_not_nest_and_others_wait() {
  const Doubling doubling;
  Executor executor(Isa::kScalar, 1);
  CHECK_THROWS(executor.end_recording(), std::logic_error);
  executor.begin_recording();
  CHECK_THROWS(executor.begin_recording(), std::logic_error);
  std::vector<float> x(32, 1.0f), y(32, 0.0f);
  std::atomic<bool> done{false};
  std::thread other([&] {
    executor.linear(doubling.args(x.data(), y.data()));
    done.store(true);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(!done.load());
  CHECK(executor.end_recording()->stages().empty());
  other.join();
  CHECK(done.load() && y[0] == 2.0f);
}

void programs_of_several_threads_take_turns() {
  const Doubling doubling;
  Executor executor(best_isa(), 3);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<float> x(32, static_cast<float>(t)), y(32, -1.0f);
      executor.begin_recording();
      executor.linear(doubling.args(x.data(), y.data()));
      const auto program = executor.end_recording();
      for (int i = 0; i < 300; ++i) {
        y.assign(32, -1.0f);
        executor.run(*program);
        if (y[7] != 2.0f * static_cast<float>(t)) wrong.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong.load() == 0);
}

void isas_are_named_and_refused_by_name() {
  CHECK(isa_by_name("scalar") == Isa::kScalar && isa_by_name("auto") == best_isa());
  CHECK_THROWS(isa_by_name("mmx"), std::invalid_argument);
  for (int i = 0; i < kNumIsas; ++i) {
    const auto isa = static_cast<Isa>(i);
    if (isa_unavailable(isa).empty()) {
      CHECK(kernels(isa).linear != nullptr && isa_by_name(isa_name(isa)) == isa);
    } else {
      CHECK_THROWS(kernels(isa), std::invalid_argument);
      CHECK_THROWS(isa_by_name(isa_name(isa)), std::invalid_argument);
    }
  }
}

}  // namespace

int main() {
  a_system_that_is_short_of_threads_is_survived();
  barrier_holds_all_until_the_last_has_come();
  operations_run_at_once_unless_recorded();
  recordings_do_not_nest_and_others_wait();
  programs_of_several_threads_take_turns();
  isas_are_named_and_refused_by_name();
  a_fork_has_threads_of_its_own();
  small_numbers_survive_whatever_the_caller_is_set_to();
  nothing_happens_without_rows();
}
