#include "checkpoint.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <stdexcept>

#include "common/json.h"
#include "config.h"

namespace embed_llama {
namespace {

using examples::Json;

constexpr std::uint64_t kMostHeaderBytes = 100u << 20;  // as the format's own library has it
constexpr std::int64_t kMostElements = std::int64_t{1} << 40;

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

// The files of the model: those that the index names, else the one of the usual name. What else
// lies in the folder is another copy of the weights, or a part of another model.
std::set<std::string> file_names(const std::string& directory) {
  const std::string single = "model.safetensors";
  const std::string index = directory + "/" + single + ".index.json";
  if (!std::filesystem::exists(index)) {
    if (std::filesystem::exists(directory + "/" + single)) return {single};
    throw std::runtime_error(directory + " has no .safetensors file of the name " + single +
                             ", and no " + single + ".index.json that names others");
  }
  const Json json = read_json(index);
  const Json* map = json.find("weight_map");
  if (map == nullptr || map->members.empty()) throw std::runtime_error(index + ": no weight_map");
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->members) {
    const std::filesystem::path name(file.text);
    if (name != name.filename() || name.extension() != ".safetensors") {
      throw std::runtime_error(index + ": '" + file.text.substr(0, 40) +
                               "' is no plain name of a .safetensors file beside it");
    }
    names.insert(file.text);
  }
  return names;
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
      const Tensor tensor = read_entry(entry, data, size - sizeof header - header);
      if (!tensors_.emplace(name, tensor).second) throw std::runtime_error("stands twice");
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(path + ": " + name + ": " + error.what());
    }
  }
  files_.push_back(file);
}

Checkpoint::Checkpoint(const std::string& directory) : config_(read_config(directory)) {
  for (const std::string& name : file_names(directory)) add_file(directory + "/" + name);
}

const Tensor& Checkpoint::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw std::runtime_error("the checkpoint lacks " + name);
  return found->second;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

}  // namespace embed_llama
