#include "config.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>

namespace embed_llama {
namespace {

using examples::Json;

constexpr std::size_t kMostJsonBytes = 64u << 20;  // an index of a very large model has 10 MB

std::int64_t needed(const Json& config, const char* name, std::int64_t high) {
  const Json* value = config.find(name);
  if (value == nullptr) throw std::runtime_error(std::string("config.json lacks ") + name);
  return value->integer(std::string("config.json: ") + name, 1, high);
}

bool is_true(const Json& config, const char* name) {
  const Json* value = config.find(name);
  return value != nullptr && value->boolean;
}

void refuse_other_models(const Json& config) {
  const Json* names = config.find("architectures");
  const bool llama =
      names != nullptr && names->items.size() == 1 && names->items[0].text == "LlamaForCausalLM";
  if (!llama) throw std::runtime_error("config.json: architectures is not LlamaForCausalLM");
  for (const char* name : {"attention_bias", "mlp_bias"}) {
    if (is_true(config, name)) throw std::runtime_error(std::string(name) + " is not supported");
  }
  const Json* activation = config.find("hidden_act");
  if (activation != nullptr && activation->text != "silu") {
    throw std::runtime_error("config.json: hidden_act is not silu");
  }
}

// Where the rotation's base stands, and how its type is spelled, has changed over transformers'
// versions.
double rope_theta(const Json& config) {
  const Json* theta = config.find("rope_theta");
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = config.find(name);
    if (rope == nullptr || rope->type == Json::Type::kNull) continue;
    if (rope->type != Json::Type::kObject) {
      throw std::runtime_error(std::string("config.json: ") + name + " is not an object");
    }
    for (const char* key : {"rope_type", "type"}) {
      const Json* type = rope->find(key);
      if (type != nullptr && type->text != "default") {
        throw std::runtime_error("rope_type " + type->text + " is not supported: default is");
      }
    }
    for (const char* key : {"factor", "partial_rotary_factor"}) {
      const Json* value = rope->find(key);
      if (value != nullptr && value->type != Json::Type::kNull && value->number != 1.0) {
        throw std::runtime_error(std::string("config.json: ") + name + "." + key +
                                 " is not supported");
      }
    }
    if (const Json* own = rope->find("rope_theta")) theta = own;
  }
  return theta != nullptr ? theta->number : 10000.0;
}

// The ids that end a text, of one file: none, one or several.
void add_eos(const Json& json, const std::string& file, std::vector<std::int32_t>& ids) {
  const Json* eos = json.find("eos_token_id");
  if (eos == nullptr || eos->type == Json::Type::kNull) return;
  const auto add = [&](const Json& id) {
    const auto value = static_cast<std::int32_t>(
        id.integer(file + ": eos_token_id", 0, std::numeric_limits<std::int32_t>::max()));
    if (std::find(ids.begin(), ids.end(), value) == ids.end()) ids.push_back(value);
  };
  if (eos->type != Json::Type::kArray) add(*eos);
  for (const Json& id : eos->items) add(id);
}

}  // namespace

Json read_json(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostJsonBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (!file.is_open() || file.bad()) throw std::runtime_error(path + " cannot be read");
  if (text.size() > kMostJsonBytes) throw std::runtime_error(path + " is too long");
  try {
    return examples::parse_json(text);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(path + ": " + error.what());
  }
}

LlamaConfig read_config(const std::string& directory) {
  const Json json = read_json(directory + "/config.json");
  refuse_other_models(json);
  LlamaConfig c{};
  c.vocab_size = static_cast<int>(needed(json, "vocab_size", 1 << 24));
  c.hidden_size = static_cast<int>(needed(json, "hidden_size", 1 << 17));
  c.intermediate_size = static_cast<int>(needed(json, "intermediate_size", 1 << 19));
  c.num_layers = static_cast<int>(needed(json, "num_hidden_layers", 1024));
  c.num_heads = static_cast<int>(needed(json, "num_attention_heads", 1024));
  c.max_position_embeddings = static_cast<int>(needed(json, "max_position_embeddings", 1 << 24));
  const auto optional = [&](const char* name, int otherwise) {
    const Json* value = json.find(name);
    const bool given = value != nullptr && value->type != Json::Type::kNull;
    return given ? static_cast<int>(needed(json, name, 1 << 17)) : otherwise;
  };
  c.num_kv_heads = optional("num_key_value_heads", c.num_heads);
  c.head_dim = optional("head_dim", c.hidden_size / c.num_heads);
  if (c.num_heads % c.num_kv_heads != 0) {
    throw std::runtime_error("config.json: num_key_value_heads does not divide the heads");
  }
  if (c.head_dim % 16 != 0 || c.head_dim < 16 || c.head_dim > 256) {
    throw std::runtime_error("config.json: head_dim is not a multiple of 16 from 16 to 256");
  }
  const Json* eps = json.find("rms_norm_eps");
  c.rms_norm_eps = eps != nullptr ? static_cast<float>(eps->number) : 1e-6f;
  if (!(c.rms_norm_eps >= 0.0f && c.rms_norm_eps < 1.0f)) {
    throw std::runtime_error("config.json: rms_norm_eps is not a number from 0 to 1");
  }
  c.rope_theta = rope_theta(json);
  if (!(c.rope_theta > 0.0)) throw std::runtime_error("config.json: rope_theta is not above 0");
  c.tied = is_true(json, "tie_word_embeddings");
  // The two files disagree in published checkpoints, and an id that is missing runs on to the
  // limit.
  add_eos(json, "config.json", c.eos_ids);
  const std::string generation = directory + "/generation_config.json";
  if (std::filesystem::exists(generation)) {
    add_eos(read_json(generation), "generation_config.json", c.eos_ids);
  }
  return c;
}

}  // namespace embed_llama
