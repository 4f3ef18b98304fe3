// What config.json says of a Llama model, and generation_config.json of where its texts end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/json.h"

namespace embed_llama {

// What the arithmetic depends on. Names as in config.json.
struct LlamaConfig {
  int vocab_size, hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim;
  int max_position_embeddings;
  float rms_norm_eps;
  double rope_theta;
  bool tied;
  std::vector<std::int32_t> eos_ids;
};

// Throws std::runtime_error for a model that this program would compute otherwise than it was
// trained, and for sizes that are none.
LlamaConfig read_config(const std::string& directory);

// Throws std::runtime_error that names the file, for one that cannot be read or is not JSON.
examples::Json read_json(const std::string& path);

}  // namespace embed_llama
