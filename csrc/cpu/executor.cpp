#include "ptd/cpu/executor.h"

#include <cstddef>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "attention_layout.h"
#include "linear_layout.h"
#include "ptd/cpu/thread_pool.h"

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace ptd::cpu {
namespace {

template <typename Args, typename = void>
struct HasScratch : std::false_type {};
template <typename Args>
struct HasScratch<Args, std::void_t<decltype(std::declval<Args>().scratch)>> : std::true_type {};

bool needs_preparation(const LinearWeight& w) {
  if (w.format == WeightFormat::kInt8) return true;
  return w.format != WeightFormat::kF32 && w.in_padded != w.in_features;
}

long this_process() {
#if defined(__unix__) || defined(__APPLE__)
  return static_cast<long>(getpid());
#else
  return 0;  // there is no fork
#endif
}

// The kernels hold kTileHeads query heads a key/value head. A single key/value head with more of
// them is as good as several that lie in one place.
AttentionArgs in_small_groups(const AttentionArgs& args) {
  const int group = args.q_heads / args.kv_heads;
  if (group <= kTileHeads) return args;
  if (args.kv_heads > 1) {
    throw std::invalid_argument(
        "num_attention_heads=" + std::to_string(args.q_heads) +
        " with num_key_value_heads=" + std::to_string(args.kv_heads) +
        " is not served by the CPU kernels: allowed are up to " + std::to_string(kTileHeads) +
        " attention heads for each of several key/value heads. Use kernels='torch'.");
  }
  int most = kTileHeads;
  while (group % most != 0) --most;
  AttentionArgs split = args;
  split.kv_heads = group / most;
  split.kv_head_stride = 0;
  return split;
}

}  // namespace

// All that a fork leaves behind: the threads, and locks that one of them may have held.
struct Executor::Team {
  explicit Team(int threads) : pool(threads) {}

  // Where an operation goes: an empty program, unless one is recorded.
  Program& target() {
    if (recording != nullptr) return *recording;
    immediate.clear();  // what an exception has left there
    return immediate;
  }

  // Memory of at least so many bytes, aligned to 64.
  unsigned char* scratch(std::int64_t bytes) {
    constexpr std::size_t kAlign = 64;
    const auto wanted = static_cast<std::size_t>(bytes) + kAlign;
    if (memory.size() < wanted) memory.resize(wanted);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + (kAlign - address % kAlign) % kAlign;
  }

  ThreadPool pool;
  std::recursive_mutex mutex;          // guards what follows
  std::shared_ptr<Program> recording;  // null while nothing is recorded
  Program immediate;
  std::vector<unsigned char> memory;  // of all programs: one runs at a time
};

Executor::Executor(Isa isa, int threads)
    : isa_(isa),
      kernels_(kernels(isa)),
      threads_(threads),
      team_(std::make_unique<Team>(threads)),
      process_(this_process()) {}

// Threads that are not there cannot be joined, so a team of the parent process is left as it is.
Executor::~Executor() {
  if (process_ != this_process()) (void)team_.release();
}

Executor::Team& Executor::team() {
  const long process = this_process();
  if (process_.load(std::memory_order_acquire) == process) return *team_;
  const std::lock_guard<std::mutex> lock(replacing_);
  if (process_.load(std::memory_order_relaxed) != process) {
    auto own = std::make_unique<Team>(threads_);
    (void)team_.release();
    team_ = std::move(own);
    process_.store(process, std::memory_order_release);
  }
  return *team_;
}

void Executor::begin_recording() {
  Team& team = this->team();
  team.mutex.lock();
  if (team.recording != nullptr) {
    team.mutex.unlock();
    throw std::logic_error("this thread is recording a program already; end that first");
  }
  team.recording = std::make_shared<Program>();
}

std::shared_ptr<Program> Executor::end_recording() {
  Team& team = this->team();
  const std::lock_guard<std::recursive_mutex> lock(team.mutex);
  if (team.recording == nullptr) throw std::logic_error("nothing is being recorded");
  std::shared_ptr<Program> program = std::move(team.recording);
  team.recording = nullptr;
  team.mutex.unlock();  // of begin_recording(), which this thread called
  return program;
}

void Executor::run(const Program& program) {
  Team& team = this->team();
  const std::lock_guard<std::recursive_mutex> lock(team.mutex);
  const auto& stages = program.stages();
  unsigned char* scratch = team.scratch(program.scratch_bytes());
  team.pool.run([&](int index) {
    for (std::size_t i = 0; i < stages.size(); ++i) {
      if (i != 0) team.pool.barrier();
      stages[i](scratch, Share{index, threads_});
    }
  });
}

template <typename Args>
void Executor::do_stages(const Args& args, std::int64_t scratch_bytes,
                         std::initializer_list<void (*)(const Args&, Share)> stages) {
  Team& team = this->team();
  const std::lock_guard<std::recursive_mutex> lock(team.mutex);
  Program& program = team.target();
  program.need_scratch(scratch_bytes);
  for (const auto stage : stages) {
    program.add([args, stage](unsigned char* scratch, Share share) {
      if constexpr (HasScratch<Args>::value) {
        Args with_scratch = args;
        with_scratch.scratch = scratch;
        stage(with_scratch, share);
      } else {
        (void)scratch;
        stage(args, share);
      }
    });
  }
  finish(team, program);
}

void Executor::finish(Team& team, Program& program) {
  if (&program == &team.immediate) run(program);
}

void Executor::embed(const EmbedArgs& args, DType dtype) {
  Team& team = this->team();
  const std::lock_guard<std::recursive_mutex> lock(team.mutex);
  Program& program = team.target();
  program.add([args, dtype, kernel = kernels_.embed](unsigned char*, Share share) {
    kernel(args, dtype, share);
  });
  finish(team, program);
}

void Executor::add_rms_norm(const AddRmsNormArgs& args) {
  do_stages(args, 0, {kernels_.add_rms_norm});
}

void Executor::linear(const LinearArgs& args) {
  if (args.rows < 1) return;
  const std::int64_t bytes = linear_scratch_bytes(args.weight, args.rows, threads());
  if (needs_preparation(args.weight)) {
    do_stages(args, bytes, {kernels_.linear_prepare, kernels_.linear});
  } else {
    do_stages(args, bytes, {kernels_.linear});
  }
}

void Executor::head(const HeadArgs& args) {
  if (args.rows < 1) return;
  const std::int64_t linear_bytes = linear_scratch_bytes(args.weight, args.rows, threads());
  const std::int64_t bests = std::int64_t{4} * threads() * args.rows;
  Team& team = this->team();
  const std::lock_guard<std::recursive_mutex> lock(team.mutex);
  Program& program = team.target();
  program.need_scratch(linear_bytes + 2 * bests);
  const auto add = [&](void (*stage)(const HeadArgs&, Share)) {
    program.add([=](unsigned char* scratch, Share share) {
      HeadArgs with_scratch = args;
      with_scratch.scratch = scratch;
      with_scratch.best_value = reinterpret_cast<float*>(scratch + linear_bytes);
      with_scratch.best_id = reinterpret_cast<std::int32_t*>(scratch + linear_bytes + bests);
      stage(with_scratch, share);
    });
  };
  if (needs_preparation(args.weight)) add(kernels_.head_prepare);
  add(kernels_.head);
  add(kernels_.head_finish);
  finish(team, program);
}

void Executor::rope_kv_write(const RopeKvArgs& args) {
  do_stages(args, 0, {kernels_.rope_kv_write});
}

void Executor::attention(const AttentionArgs& args) {
  if (args.rows < 1) return;
  const AttentionArgs small = in_small_groups(args);
  do_stages(small, attention_scratch_bytes(small, threads()),
            {kernels_.attention_prepare, kernels_.attention, kernels_.attention_finish});
}

void Executor::silu_mul(const SiluMulArgs& args) { do_stages(args, 0, {kernels_.silu_mul}); }

void Executor::kv_commit(const KvCommitArgs& args) { do_stages(args, 0, {kernels_.kv_commit}); }

void Executor::select(const SelectArgs& args) {
  do_stages(args, select_scratch_bytes(args, threads()), {kernels_.select});
}

}  // namespace ptd::cpu
