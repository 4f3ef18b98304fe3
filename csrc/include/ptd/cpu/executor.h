// Runs kernels on a team of threads: one at a time, or a recorded program of them in one go.
//
// A program is to a CPU what a captured graph is to a GPU: the operations of a step with their
// pointers, replayed without the language above. Lengths that change from step to step (the
// prefix) are read through pointers.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ptd/cpu/kernels.h"

namespace ptd::cpu {

// Operations in the order in which they were recorded.
class Program {
 public:
  using Stage = std::function<void(unsigned char* scratch, Share)>;

  void add(Stage stage) { stages_.push_back(std::move(stage)); }
  void need_scratch(std::int64_t bytes) {
    if (bytes > scratch_bytes_) scratch_bytes_ = bytes;
  }
  void clear() { stages_.clear(); }
  const std::vector<Stage>& stages() const { return stages_; }
  std::int64_t scratch_bytes() const { return scratch_bytes_; }

 private:
  std::vector<Stage> stages_;
  std::int64_t scratch_bytes_ = 0;  // the most that one of the stages needs
};

// In a process that was forked, an executor starts threads of its own when it is first used.
class Executor {
 public:
  // threads: see ThreadPool.
  Executor(Isa isa, int threads);
  ~Executor();

  Isa isa() const { return isa_; }
  int threads() const { return threads_; }

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
  struct Team;

  template <typename Args>
  void do_stages(const Args& args, std::int64_t scratch_bytes,
                 std::initializer_list<void (*)(const Args&, Share)> stages);
  void finish(Team& team, Program& program);
  Team& team();

  Isa isa_;
  const Kernels& kernels_;
  int threads_;
  std::unique_ptr<Team> team_;
  std::atomic<long> process_;  // whose threads the team has
  std::mutex replacing_;       // guards the change to a new team
};

}  // namespace ptd::cpu
