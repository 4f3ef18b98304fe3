// Runs kernels on a team of threads: one at a time, or a recorded program of them in one go.
//
// A program is to a CPU what a captured graph is to a GPU: the operations of a step with their
// pointers, replayed without the language above. Lengths that change from step to step (the
// prefix) are read through pointers.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ptd/cpu/kernels.h"
#include "ptd/cpu/thread_pool.h"

namespace ptd::cpu {

// Operations in the order in which they were recorded.
class Program {
 public:
  using Stage = std::function<void(unsigned char* scratch, Share)>;

  void add(Stage stage) { stages_.push_back(std::move(stage)); }
  void clear() { stages_.clear(); }
  const std::vector<Stage>& stages() const { return stages_; }

 private:
  std::vector<Stage> stages_;
};

class Executor {
 public:
  // threads: 1 and more.
  Executor(Isa isa, int threads);

  Isa isa() const { return isa_; }
  int threads() const { return pool_.size(); }

  // From here to end_recording() the operations that this thread calls are recorded and not run;
  // other threads wait. Throws std::logic_error if this thread records already.
  void begin_recording();
  std::shared_ptr<Program> end_recording();
  void run(const Program& program);

  void embed(const EmbedArgs& args, DType dtype);
  void add_rms_norm(const AddRmsNormArgs& args);
  void linear(const LinearArgs& args);
  void head(const HeadArgs& args);
  void rope_kv_write(const RopeKvArgs& args);
  void attention(const AttentionArgs& args);
  void silu_mul(const SiluMulArgs& args);
  void kv_commit(const KvCommitArgs& args);
  void select(const SelectArgs& args);

 private:
  template <typename Args>
  void do_stages(const Args& args, std::int64_t scratch_bytes,
                 std::initializer_list<void (*)(const Args&, Share)> stages);
  void need_scratch(std::int64_t bytes);
  void finish(Program& program);

  Isa isa_;
  const Kernels& kernels_;
  ThreadPool pool_;
  std::recursive_mutex mutex_;          // guards what follows
  std::shared_ptr<Program> recording_;  // null while nothing is recorded
  Program immediate_;
  // Working memory of all programs: one runs at a time.
  std::vector<unsigned char> memory_;
  unsigned char* scratch_ = nullptr;  // within memory_, aligned to 64 bytes
};

}  // namespace ptd::cpu
