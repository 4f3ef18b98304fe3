// A Llama decoder on the CPU kernels: one forward pass for the rows of a step (a tree) and for a
// part of the prompt (a chain).
//
// A layer reads top to bottom in llama.cpp. A step's pass is recorded once for each number of rows
// and replayed from then on; what changes from step to step lies in memory that does not move.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "checkpoint.h"
#include "ptd/cpu/executor.h"
#include "ptd/step_plan.h"

namespace embed_llama {

// Zeroed memory at a page of its own, given back at the end.
class Pages {
 public:
  explicit Pages(std::int64_t bytes);
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages();
  unsigned char* data() const { return data_; }

 private:
  std::int64_t bytes_;
  unsigned char* data_;
};

class Llama {
 public:
  // max_nodes: rows of a step; max_path as the session's; successors: ids a row besides the next.
  Llama(const Checkpoint& checkpoint, int threads, int max_seq_len, int max_nodes, int max_path,
        int successors);

  // Computes the keys and values of a prompt's tokens but the last.
  void prefill(const std::vector<std::int32_t>& prompt);

  // The block for Session::plan(), and the forward of a planned step: ids [bucket, 1 + successors].
  unsigned char* block() const { return block_.data(); }
  std::size_t block_size() const { return block_bytes_; }
  ptd::Span<const std::int32_t> step(int bucket);

 private:
  struct Layer {
    const unsigned char* input_norm;
    const unsigned char* post_norm;
    ptd::cpu::LinearWeight qkv, o, gate_up, down;
  };
  struct Rows {  // what the rows of a pass are read from
    int count;
    const std::int32_t* token_ids;
    const std::int32_t* positions;
    const std::int32_t* prefix_len;
    const std::uint64_t* mask;  // null: a chain
    int max_keys;
  };

  void load(const Checkpoint& checkpoint);
  ptd::cpu::LinearWeight pack(const Checkpoint& checkpoint, const std::vector<std::string>& names);
  const unsigned char* norm(const Checkpoint& checkpoint, const std::string& name);
  void fill_rotation();
  void forward(const Rows& rows);
  void choose(int rows, const float* zeros);
  Rows step_rows(int bucket) const;

  LlamaConfig config_;
  ptd::cpu::DType dtype_;
  std::int64_t item_;  // bytes of an element
  int max_nodes_, max_path_, successors_, max_seq_len_, capacity_, max_rows_;
  ptd::cpu::Executor executor_;

  std::int64_t weight_bytes_ = 0;  // taken of weights_
  std::unique_ptr<Pages> weights_;
  std::vector<std::vector<unsigned char>> norms_;
  std::vector<Layer> layers_;
  const unsigned char* final_norm_ = nullptr;
  ptd::cpu::LinearWeight embed_{}, head_{};

  std::vector<float> cos_sin_;
  std::unique_ptr<Pages> keys_, values_;  // T [layers, kv_heads, capacity, head_dim]
  std::size_t block_bytes_;
  Pages block_;
  // T [max_rows, ...]
  Pages residual_, normed_, qkv_, q_, attended_, projected_, gate_up_, activated_;
  std::vector<float> logits_, zeros_;
  std::vector<std::int32_t> output_;
  std::map<int, std::shared_ptr<ptd::cpu::Program>> programs_;  // by rows
};

}  // namespace embed_llama
