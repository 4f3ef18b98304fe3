// The model of the example: the next token is a function of the last two tokens. A service puts its
// own runtime here; what it must do with a plan is the same.
#pragma once

#include <cstdint>
#include <vector>

#include "ptd/types.h"

namespace embed_service {

class ToyModel {
 public:
  static constexpr int kVocab = 512;

  // max_nodes and max_path: those of the session.
  ToyModel(int max_seq_len, int max_nodes, int max_path);

  // Where Session::plan() writes; what a GPU would get by one copy.
  unsigned char* block() { return reinterpret_cast<unsigned char*>(block_.data()); }
  std::size_t block_size() const { return block_.size() * sizeof(block_[0]); }

  // The cache rows of a prompt's tokens but the last.
  void prefill(const std::vector<std::int32_t>& prompt);

  // The forward of the planned step: the next token of each of its rows.
  ptd::Span<const std::int32_t> forward(int bucket);

 private:
  std::vector<std::uint64_t> block_;
  // In place of keys and values: the token of each row.
  std::vector<std::int32_t> cache_;
  std::vector<std::int32_t> output_;
  int max_path_;
};

}  // namespace embed_service
