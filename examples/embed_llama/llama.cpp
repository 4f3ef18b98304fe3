#include "llama.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <new>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>

#include "ptd/cpu/packing.h"

namespace embed_llama {
namespace {

namespace cpu = ptd::cpu;

constexpr int kPrefillChunk = 512;
constexpr std::int64_t kPage = 2 << 20;
constexpr std::int64_t kAlignment = 64;  // of a packed matrix

std::int64_t round_up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

std::int64_t packed_size(cpu::DType dtype, std::int64_t out, std::int64_t in) {
  const auto format =
      dtype == cpu::DType::kBF16 ? cpu::WeightFormat::kBF16 : cpu::WeightFormat::kF32;
  return round_up(cpu::packed_bytes({format, out, in, false}), kAlignment);
}

}  // namespace

Pages::Pages(std::int64_t bytes) : bytes_(round_up(std::max<std::int64_t>(bytes, 1), kPage)) {
  void* memory = ::mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<unsigned char*>(memory);
}

Pages::~Pages() { ::munmap(data_, static_cast<std::size_t>(bytes_)); }

Llama::Llama(const Checkpoint& checkpoint, int threads, int max_seq_len, int max_nodes,
             int max_path, int successors)
    : config_(checkpoint.config()),
      dtype_(checkpoint.dtype()),
      item_(dtype_ == cpu::DType::kBF16 ? 2 : 4),
      max_nodes_(max_nodes),
      max_path_(max_path),
      successors_(successors),
      max_seq_len_(max_seq_len),
      capacity_(max_seq_len + max_nodes),
      max_rows_(std::max(max_nodes, std::min(kPrefillChunk, max_seq_len))),
      executor_(cpu::best_isa(), threads),
      block_bytes_(ptd::PlanLayout::of(max_nodes, max_path).total),
      block_(static_cast<std::int64_t>(block_bytes_)),
      residual_(item_ * max_rows_ * config_.hidden_size),
      normed_(item_ * max_rows_ * config_.hidden_size),
      qkv_(item_ * max_rows_ * (config_.num_heads + 2 * config_.num_kv_heads) * config_.head_dim),
      q_(item_ * max_rows_ * config_.num_heads * config_.head_dim),
      attended_(item_ * max_rows_ * config_.num_heads * config_.head_dim),
      projected_(item_ * max_rows_ * config_.hidden_size),
      gate_up_(item_ * max_rows_ * 2 * config_.intermediate_size),
      activated_(item_ * max_rows_ * config_.intermediate_size),
      zeros_(static_cast<std::size_t>(std::max(max_nodes, 4)), 0.0f),
      output_(static_cast<std::size_t>(max_nodes) * static_cast<std::size_t>(1 + successors)) {
  const std::int64_t cache = item_ * config_.num_layers * config_.num_kv_heads * capacity_ *
                             std::int64_t{config_.head_dim};
  keys_ = std::make_unique<Pages>(cache);
  values_ = std::make_unique<Pages>(cache);
  load(checkpoint);
  // Behind load(): by then the weights have the sizes of the configuration, which may say anything.
  if (successors > 0) {
    logits_.resize(static_cast<std::size_t>(max_nodes) *
                   static_cast<std::size_t>(config_.vocab_size));
  }
  fill_rotation();
}

// Frequencies and angles in fp32, as the models were trained; a row is D/2 cosines, then the sines.
void Llama::fill_rotation() {
  const int half = config_.head_dim / 2;
  cos_sin_.resize(static_cast<std::size_t>(max_seq_len_) *
                  static_cast<std::size_t>(config_.head_dim));
  for (int i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config_.head_dim);
    const auto power = static_cast<float>(std::pow(config_.rope_theta, double{exponent}));
    const float frequency = 1.0f / power;
    for (int position = 0; position < max_seq_len_; ++position) {
      float* row = cos_sin_.data() + std::ptrdiff_t{position} * config_.head_dim;
      const double angle = static_cast<float>(position) * frequency;
      row[i] = static_cast<float>(std::cos(angle));
      row[half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

// Packs matrices, one below the other where there are several, behind those packed before: a step
// reads all of them once, in order.
cpu::LinearWeight Llama::pack(const Checkpoint& checkpoint, const std::vector<std::string>& names) {
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::vector<unsigned char> joined;
  for (const std::string& name : names) {
    const Tensor& tensor = checkpoint.tensor(name + ".weight");
    if (tensor.dtype != dtype_ || tensor.shape.size() != 2 || (in != 0 && tensor.shape[1] != in)) {
      throw std::runtime_error(name + ": the type or the shape is not that of its neighbours");
    }
    in = tensor.shape[1];
    out += tensor.shape[0];
    joined.insert(joined.end(), tensor.data, tensor.data + tensor.shape[0] * in * item_);
  }
  const auto format =
      dtype_ == cpu::DType::kBF16 ? cpu::WeightFormat::kBF16 : cpu::WeightFormat::kF32;
  const cpu::WeightShape shape{format, out, in, false};
  unsigned char* block = weights_->data() + weight_bytes_;
  weight_bytes_ += packed_size(dtype_, out, in);
  cpu::pack_weight(shape, dtype_, joined.data(), nullptr, block);
  return cpu::packed_view(shape, block);
}

const unsigned char* Llama::norm(const Checkpoint& checkpoint, const std::string& name) {
  const Tensor& tensor = checkpoint.tensor(name + ".weight");
  if (tensor.dtype != dtype_ || tensor.shape != std::vector<std::int64_t>{config_.hidden_size}) {
    throw std::runtime_error(name + ": the type or the shape is not the model's");
  }
  norms_.emplace_back(tensor.data, tensor.data + item_ * config_.hidden_size);
  return norms_.back().data();
}

void Llama::load(const Checkpoint& checkpoint) {
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t inner = config_.intermediate_size;
  const std::int64_t q = std::int64_t{config_.num_heads} * config_.head_dim;
  const std::int64_t kv = std::int64_t{config_.num_kv_heads} * config_.head_dim;
  const auto size = [&](std::int64_t out, std::int64_t in) { return packed_size(dtype_, out, in); };
  const std::int64_t layer =
      size(q + 2 * kv, hidden) + size(hidden, q) + size(2 * inner, hidden) + size(hidden, inner);
  const std::int64_t matrix = size(config_.vocab_size, hidden);
  const std::int64_t all = config_.num_layers * layer + (config_.tied ? 1 : 2) * matrix;
  weights_ = std::make_unique<Pages>(all);
  cpu::ask_for_large_pages(weights_->data(), all);

  std::set<std::string> unread;
  for (const std::string& name : checkpoint.names()) {
    // Old exports stored what follows from the configuration.
    if (name.find("rotary_emb.inv_freq") == std::string::npos) unread.insert(name);
  }
  if (config_.tied) unread.erase("lm_head.weight");
  const auto read_norm = [&](const std::string& name) {
    unread.erase(name + ".weight");
    return norm(checkpoint, name);
  };
  // Matrices [rows, in], one below the other. The shapes come from a file: the room above was made
  // for those of the configuration.
  using Part = std::pair<std::string, std::int64_t>;
  const auto take = [&](const std::vector<Part>& parts, std::int64_t in) {
    std::vector<std::string> names;
    for (const auto& [name, rows] : parts) {
      if (checkpoint.tensor(name + ".weight").shape != std::vector<std::int64_t>{rows, in}) {
        throw std::runtime_error(name + ": wrong shape");
      }
      unread.erase(name + ".weight");
      names.push_back(name);
    }
    return pack(checkpoint, names);
  };
  embed_ = take({{"model.embed_tokens", config_.vocab_size}}, hidden);
  norms_.reserve(static_cast<std::size_t>(2 * config_.num_layers + 1));
  for (int i = 0; i < config_.num_layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    Layer made{};
    made.input_norm = read_norm(at + "input_layernorm");
    made.qkv = take({{at + "self_attn.q_proj", q},
                     {at + "self_attn.k_proj", kv},
                     {at + "self_attn.v_proj", kv}},
                    hidden);
    made.o = take({{at + "self_attn.o_proj", hidden}}, q);
    made.post_norm = read_norm(at + "post_attention_layernorm");
    made.gate_up = take({{at + "mlp.gate_proj", inner}, {at + "mlp.up_proj", inner}}, hidden);
    made.down = take({{at + "mlp.down_proj", hidden}}, inner);
    layers_.push_back(made);
  }
  final_norm_ = read_norm("model.norm");
  head_ = config_.tied ? embed_ : take({{"lm_head", config_.vocab_size}}, hidden);
  if (!unread.empty()) {
    throw std::runtime_error("the checkpoint has a tensor that no Llama model has: " +
                             *unread.begin());
  }
}

void Llama::forward(const Rows& rows) {
  const int n = rows.count;
  const int heads = config_.num_heads;
  const int kv_heads = config_.num_kv_heads;
  const int dim = config_.head_dim;
  const std::int64_t head_stride = std::int64_t{capacity_} * dim;
  const auto add_norm = [&](const void* x, const void* weight) {
    executor_.add_rms_norm({dtype_, n, config_.hidden_size, x, residual_.data(), weight,
                            config_.rms_norm_eps, normed_.data()});
  };
  const auto linear = [&](const Pages& x, const cpu::LinearWeight& weight, const Pages& out) {
    executor_.linear({dtype_, n, x.data(), weight, out.data(), false, nullptr});
  };

  executor_.embed({rows.token_ids, embed_, residual_.data(), n}, dtype_);
  const void* branch = nullptr;  // what the residual stream has still to take in
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    const std::int64_t at = static_cast<std::int64_t>(l) * kv_heads * head_stride * item_;
    unsigned char* k = keys_->data() + at;
    unsigned char* v = values_->data() + at;
    add_norm(branch, layer.input_norm);
    linear(normed_, layer.qkv, qkv_);
    executor_.rope_kv_write({dtype_, n, heads, kv_heads, dim, qkv_.data(), nullptr, nullptr,
                             config_.rms_norm_eps, cos_sin_.data(), rows.positions, rows.prefix_len,
                             k, v, head_stride, q_.data()});
    executor_.attention({dtype_, n, heads, kv_heads, dim, q_.data(), k, v, head_stride, rows.mask,
                         rows.prefix_len, static_cast<float>(1.0 / std::sqrt(double(dim))),
                         attended_.data(), rows.max_keys, nullptr});
    linear(attended_, layer.o, projected_);
    add_norm(projected_.data(), layer.post_norm);
    linear(normed_, layer.gate_up, gate_up_);
    executor_.silu_mul({dtype_, n, config_.intermediate_size, gate_up_.data(), activated_.data()});
    linear(activated_, layer.down, projected_);
    branch = projected_.data();
  }
  add_norm(branch, final_norm_);
}

// The rows' argmax, and their likeliest ids where the drafter asks for some.
void Llama::choose(int rows, const float* zeros) {
  const int stride = 1 + successors_;
  executor_.head({dtype_, rows, successors_ > 0 ? rows : 0, normed_.data(), head_, logits_.data(),
                  config_.vocab_size, nullptr, nullptr, output_.data(), stride, nullptr});
  if (successors_ == 0) return;
  executor_.select({rows, config_.vocab_size, logits_.data(), config_.vocab_size, zeros, zeros,
                    zeros, false, output_.data(), stride, successors_, nullptr});
}

void Llama::prefill(const std::vector<std::int32_t>& prompt) {
  const int count = static_cast<int>(prompt.size()) - 1;
  std::vector<std::int32_t> positions(prompt.size());
  std::iota(positions.begin(), positions.end(), 0);
  for (std::int32_t first = 0; first < count; first += kPrefillChunk) {
    const int n = std::min(kPrefillChunk, count - first);
    forward({n, prompt.data() + first, positions.data() + first, &first, nullptr, first + n});
  }
}

Llama::Rows Llama::step_rows(int bucket) const {
  const auto layout = ptd::PlanLayout::of(bucket, max_path_);
  const unsigned char* block = block_.data();
  const auto ints = [&](std::size_t offset) {
    return reinterpret_cast<const std::int32_t*>(block + offset);
  };
  return {bucket,
          ints(layout.token_ids.offset),
          ints(layout.positions.offset),
          ints(layout.header.offset + offsetof(ptd::PlanHeader, prefix_len)),
          reinterpret_cast<const std::uint64_t*>(block + layout.mask.offset),
          capacity_};
}

ptd::Span<const std::int32_t> Llama::step(int bucket) {
  const auto layout = ptd::PlanLayout::of(bucket, max_path_);
  ptd::PlanHeader header;
  std::memcpy(&header, block_.data() + layout.header.offset, sizeof header);
  const Rows rows = step_rows(bucket);
  if ((header.flags & ptd::kPlanMovesRows) != 0) {
    executor_.kv_commit(
        {dtype_, config_.num_layers, config_.num_kv_heads, config_.head_dim, keys_->data(),
         values_->data(), capacity_,
         reinterpret_cast<const std::int32_t*>(block_.data() + layout.commit_src.offset),
         rows.prefix_len, header.n_commit});
  }
  auto& program = programs_[bucket];
  if (program == nullptr) {
    executor_.begin_recording();
    forward(rows);
    choose(bucket, zeros_.data());
    program = executor_.end_recording();
  }
  executor_.run(*program);
  return {output_.data(),
          static_cast<std::size_t>(bucket) * static_cast<std::size_t>(1 + successors_)};
}

}  // namespace embed_llama
