#include "checkpoint.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "common/json.h"

namespace embed_llama {
namespace {

using examples::Json;

constexpr std::uint64_t kMostHeaderBytes = 100u << 20;  // as the format's own library has it
constexpr std::int64_t kMostElements = std::int64_t{1} << 40;

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

// Where the rotation's base stands has changed over transformers' versions.
double rope_theta(const Json& config) {
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const Json* rope = config.find(name);
    if (rope == nullptr || rope->type != Json::Type::kObject) continue;
    const Json* type = rope->find("rope_type");
    if (type != nullptr && type->text != "default") {
      throw std::runtime_error("rope_type " + type->text + " is not supported: default is");
    }
    if (const Json* theta = rope->find("rope_theta")) return theta->number;
  }
  const Json* theta = config.find("rope_theta");
  return theta != nullptr ? theta->number : 10000.0;
}

LlamaConfig read_config(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + " cannot be read");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const Json json = examples::parse_json(text);
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
  if (c.head_dim % 16 != 0 || c.head_dim > 256) {
    throw std::runtime_error("config.json: head_dim is not a multiple of 16 up to 256");
  }
  const Json* eps = json.find("rms_norm_eps");
  c.rms_norm_eps = eps != nullptr ? static_cast<float>(eps->number) : 1e-6f;
  c.rope_theta = rope_theta(json);
  if (!(c.rope_theta > 0.0)) throw std::runtime_error("config.json: rope_theta is not above 0");
  c.tied = is_true(json, "tie_word_embeddings");
  if (const Json* eos = json.find("eos_token_id"); eos != nullptr) {
    const auto add = [&](const Json& id) {
      c.eos_ids.push_back(static_cast<std::int32_t>(
          id.integer("config.json: eos_token_id", 0, (std::int64_t{1} << 31) - 1)));
    };
    if (eos->type == Json::Type::kNumber) add(*eos);
    for (const Json& id : eos->items) add(id);
  }
  return c;
}

// Maps a file; the memory is given back with the last owner.
std::shared_ptr<const unsigned char> map_file(const std::string& path, std::uint64_t& size) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status{};
  void* memory = MAP_FAILED;
  if (file >= 0 && ::fstat(file, &status) == 0 && status.st_size > 0) {
    size = static_cast<std::uint64_t>(status.st_size);
    memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  }
  if (file >= 0) ::close(file);
  if (memory == MAP_FAILED) throw std::runtime_error(path + " cannot be read, or is empty");
  return {static_cast<const unsigned char*>(memory),
          [size](const unsigned char* p) { ::munmap(const_cast<unsigned char*>(p), size); }};
}

Tensor read_entry(const Json& entry, const unsigned char* data, std::uint64_t size) {
  const Json* dtype = entry.find("dtype");
  const Json* shape = entry.find("shape");
  const Json* range = entry.find("data_offsets");
  if (dtype == nullptr || shape == nullptr || range == nullptr || range->items.size() != 2) {
    throw std::runtime_error("dtype, shape or data_offsets is missing");
  }
  Tensor tensor{};
  if (dtype->text != "BF16" && dtype->text != "F32") {
    throw std::runtime_error("dtype " + dtype->text + " is not supported: BF16 and F32 are");
  }
  tensor.dtype = dtype->text == "BF16" ? ptd::cpu::DType::kBF16 : ptd::cpu::DType::kF32;
  std::int64_t elements = 1;
  for (const Json& item : shape->items) {
    // The product stays in range: both factors were bounded before.
    tensor.shape.push_back(item.integer("a size of the shape", 1, kMostElements / elements));
    elements *= tensor.shape.back();
  }
  const auto end_of_data = static_cast<std::int64_t>(size);
  const std::int64_t begin = range->items[0].integer("data_offsets[0]", 0, end_of_data);
  const std::int64_t end = range->items[1].integer("data_offsets[1]", begin, end_of_data);
  if (end - begin != elements * (tensor.dtype == ptd::cpu::DType::kBF16 ? 2 : 4)) {
    throw std::runtime_error("data_offsets do not fit the shape");
  }
  tensor.data = data + begin;
  return tensor;
}

}  // namespace

void Checkpoint::add_file(const std::string& path) {
  std::uint64_t size = 0;
  const auto file = map_file(path, size);
  std::uint64_t header = 0;
  if (size >= sizeof header) std::memcpy(&header, file.get(), sizeof header);  // little-endian
  if (size < sizeof header || header > std::min(size - sizeof header, kMostHeaderBytes)) {
    throw std::runtime_error(path + ": the header is longer than the file");
  }
  const auto* text = reinterpret_cast<const char*>(file.get() + sizeof header);
  const unsigned char* data = file.get() + sizeof header + header;
  for (const auto& [name, entry] : examples::parse_json({text, header}).members) {
    if (name == "__metadata__") continue;
    try {
      tensors_[name] = read_entry(entry, data, size - sizeof header - header);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(path + ": " + name + ": " + error.what());
    }
  }
  files_.push_back(file);
}

Checkpoint::Checkpoint(const std::string& directory)
    : config_(read_config(directory + "/config.json")) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") add_file(entry.path().string());
  }
  if (files_.empty()) throw std::runtime_error(directory + " has no .safetensors file");
}

const Tensor& Checkpoint::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw std::runtime_error("the checkpoint lacks " + name);
  return found->second;
}

}  // namespace embed_llama
