#include "ptd/cpu/executor.h"

#include <algorithm>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "linear_layout.h"

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

}  // namespace

void Executor::need_scratch(std::int64_t bytes) {
  constexpr std::size_t kAlign = 64;
  const auto wanted = static_cast<std::size_t>(bytes) + kAlign;
  if (memory_.size() >= wanted) return;
  memory_.resize(wanted);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
  scratch_ = memory_.data() + (kAlign - address % kAlign) % kAlign;
}

Executor::Executor(Isa isa, int threads) : isa_(isa), kernels_(kernels(isa)), pool_(threads) {}

void Executor::begin_recording() {
  mutex_.lock();
  if (recording_ != nullptr) {
    mutex_.unlock();
    throw std::logic_error("this thread is recording a program already; end that first");
  }
  recording_ = std::make_shared<Program>();
}

std::shared_ptr<Program> Executor::end_recording() {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (recording_ == nullptr) throw std::logic_error("nothing is being recorded");
  std::shared_ptr<Program> program = std::move(recording_);
  recording_ = nullptr;
  mutex_.unlock();  // of begin_recording(), which this thread called
  return program;
}

void Executor::run(const Program& program) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  const auto& stages = program.stages();
  const int count = pool_.size();
  pool_.run([&](int index) {
    for (std::size_t i = 0; i < stages.size(); ++i) {
      if (i != 0) pool_.barrier();
      stages[i](scratch_, Share{index, count});
    }
  });
}

template <typename Args>
void Executor::do_stages(const Args& args, std::int64_t scratch_bytes,
                         std::initializer_list<void (*)(const Args&, Share)> stages) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  Program& program = recording_ != nullptr ? *recording_ : immediate_;
  need_scratch(scratch_bytes);
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
  finish(program);
}

void Executor::finish(Program& program) {
  if (&program != &immediate_) return;
  run(program);
  program.clear();
}

void Executor::embed(const EmbedArgs& args, DType dtype) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  Program& program = recording_ != nullptr ? *recording_ : immediate_;
  program.add([args, dtype, kernel = kernels_.embed](unsigned char*, Share share) {
    kernel(args, dtype, share);
  });
  finish(program);
}

void Executor::add_rms_norm(const AddRmsNormArgs& args) {
  do_stages(args, 0, {kernels_.add_rms_norm});
}

void Executor::linear(const LinearArgs& args) {
  const std::int64_t bytes = linear_scratch_bytes(args.weight, args.rows, threads());
  if (needs_preparation(args.weight)) {
    do_stages(args, bytes, {kernels_.linear_prepare, kernels_.linear});
  } else {
    do_stages(args, bytes, {kernels_.linear});
  }
}

void Executor::head(const HeadArgs& args) {
  const std::int64_t linear_bytes = linear_scratch_bytes(args.weight, args.rows, threads());
  const std::int64_t bests = std::int64_t{4} * threads() * args.rows;
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  Program& program = recording_ != nullptr ? *recording_ : immediate_;
  need_scratch(linear_bytes + 2 * bests);
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
  finish(program);
}

void Executor::rope_kv_write(const RopeKvArgs& args) {
  do_stages(args, 0, {kernels_.rope_kv_write});
}

void Executor::attention(const AttentionArgs& args) {
  do_stages(args, attention_scratch_bytes(args, threads()),
            {kernels_.attention_prepare, kernels_.attention, kernels_.attention_finish});
}

void Executor::silu_mul(const SiluMulArgs& args) { do_stages(args, 0, {kernels_.silu_mul}); }

void Executor::kv_commit(const KvCommitArgs& args) { do_stages(args, 0, {kernels_.kv_commit}); }

void Executor::select(const SelectArgs& args) {
  do_stages(args, select_scratch_bytes(args, threads()), {kernels_.select});
}

}  // namespace ptd::cpu
