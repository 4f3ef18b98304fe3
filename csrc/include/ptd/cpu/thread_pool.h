// A team of threads that work on one job at a time, with a barrier cheap enough for use between the
// operations of a layer. All of them round to nearest and keep numbers below 2^-126, whatever the
// caller's thread is set to: a result does not depend on who computes it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ptd::cpu {

class ThreadPool {
 public:
  static constexpr int kMaxThreads = 1024;

  // The caller of run() is one of the `threads`. Throws std::invalid_argument unless they are 1 to
  // kMaxThreads, std::runtime_error if the system does not give as many.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int size() const { return size_; }

  // Calls job(index) on every thread, index 0 on this one, and returns when all are done. Callers
  // on several threads take turns. The job must not throw.
  void run(const std::function<void(int)>& job);

  // Inside a job: returns when all threads of the team have come here.
  void barrier();

 private:
  void work(int index);
  void stop();

  int size_;
  std::mutex turn_;
  const std::function<void(int)>* job_ = nullptr;
  alignas(64) std::atomic<unsigned> round_{0};  // counts jobs
  alignas(64) std::atomic<int> working_{0};     // threads that are not done with the job
  alignas(64) std::atomic<unsigned> phase_{0};  // counts barriers
  alignas(64) std::atomic<int> arrived_{0};     // threads that wait at the barrier
  std::mutex sleep_;
  std::condition_variable wake_;
  int sleeping_ = 0;  // guarded by sleep_
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ptd::cpu
