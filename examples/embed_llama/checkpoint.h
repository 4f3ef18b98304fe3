// A model directory as transformers writes it: config.json and safetensors files, those that the
// index names. Nothing in it is trusted: every size and offset is checked before it is used.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config.h"
#include "ptd/cpu/kernels.h"

namespace embed_llama {

// A tensor in a mapped file.
struct Tensor {
  ptd::cpu::DType dtype;
  std::vector<std::int64_t> shape;
  const unsigned char* data;  // not aligned
};

class Checkpoint {
 public:
  // Throws std::runtime_error that names the file, what is wrong and what is allowed.
  explicit Checkpoint(const std::string& directory);

  const LlamaConfig& config() const { return config_; }
  ptd::cpu::DType dtype() const { return tensor("model.embed_tokens.weight").dtype; }
  // Throws std::runtime_error where there is none of that name.
  const Tensor& tensor(const std::string& name) const;
  std::vector<std::string> names() const;

 private:
  void add_file(const std::string& path);

  LlamaConfig config_;
  std::vector<std::shared_ptr<const unsigned char>> files_;  // mapped
  std::map<std::string, Tensor> tensors_;
};

}  // namespace embed_llama
