#include "ptd/cpu/packing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "linear_layout.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ptd::cpu {
namespace {

struct Parts {
  std::int64_t scales, bias, total;
};

Parts parts_of(const WeightShape& s) {
  const std::int64_t out = round_up(s.out_features, kUnit);
  const std::int64_t panels =
      out / kPanel * panel_bytes(s.format, padded_inputs(s.format, s.in_features));
  Parts at{};
  at.scales = round_up(panels, 64);
  const bool scaled = s.format == WeightFormat::kInt8;
  at.bias = at.scales + (scaled ? 4 * out : 0);
  at.total = at.bias + (s.bias ? 4 * out : 0);
  return at;
}

float widen(std::uint16_t bf16) {
  const std::uint32_t bits = static_cast<std::uint32_t>(bf16) << 16;
  float value = 0.0f;
  std::memcpy(&value, &bits, 4);
  return value;
}

float read(DType type, const void* from, std::int64_t index) {
  if (type == DType::kF32) return static_cast<const float*>(from)[index];
  return widen(static_cast<const std::uint16_t*>(from)[index]);
}

std::uint16_t to_bf16(float value) {  // to nearest, ties to even
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void require_finite(const std::vector<float>& row, std::int64_t output) {
  for (std::size_t k = 0; k < row.size(); ++k) {
    if (!std::isfinite(row[k])) {
      throw std::invalid_argument("weight[" + std::to_string(output) + ", " + std::to_string(k) +
                                  "]=" + std::to_string(row[k]) +
                                  " cannot be quantised: allowed are finite numbers. Check the "
                                  "checkpoint, or load it in bfloat16 or float32.");
    }
  }
}

void pack_int8(const std::vector<float>& row, std::int64_t lane, std::int8_t* panel, float& scale) {
  float largest = 0.0f;
  for (const float w : row) largest = std::max(largest, std::fabs(w));
  scale = largest / 127.0f;
  // A scale below 2^-126 has few digits, and at last none.
  const auto quantised = [scale](float w) {
    return scale == 0.0f ? 0.0f : std::clamp(std::nearbyint(w / scale), -127.0f, 127.0f);
  };
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto k = static_cast<std::int64_t>(i);
    panel[(k / 4 * kPanel + lane) * 4 + k % 4] = static_cast<std::int8_t>(quantised(row[i]));
  }
}

void pack_int4(const std::vector<float>& row, std::int64_t lane, unsigned char* panel) {
  const auto in = static_cast<std::int64_t>(row.size());
  for (std::int64_t begin = 0; begin < in; begin += kInt4Group) {
    unsigned char* block = panel + begin / kInt4Group * kInt4BlockBytes;
    const std::int64_t end = std::min<std::int64_t>(begin + kInt4Group, in);
    const auto [low, high] = std::minmax_element(row.begin() + begin, row.begin() + end);
    // The nibbles are chosen for the scale and the minimum as they are stored.
    const std::uint16_t low_bits = to_bf16(*low);
    const float minimum = widen(low_bits);
    if (!std::isfinite(*high - minimum)) {
      throw std::invalid_argument(
          "weights from " + std::to_string(*low) + " to " + std::to_string(*high) +
          " cannot be quantised to int4: allowed is a range that a float "
          "holds. Check the checkpoint, or load it in bfloat16 or float32.");
    }
    const std::uint16_t scale_bits = to_bf16((*high - minimum) / 15.0f);
    const float scale = widen(scale_bits);
    std::memcpy(block + 2 * lane, &scale_bits, 2);
    std::memcpy(block + 2 * (kPanel + lane), &low_bits, 2);
    unsigned char* nibbles = block + 4 * kPanel;
    for (std::int64_t k = begin; k < end; ++k) {
      const float q = scale <= 0.0f ? 0.0f : std::nearbyint((row[k] - minimum) / scale);
      const auto bits = static_cast<unsigned char>(std::clamp(q, 0.0f, 15.0f));
      const std::int64_t j = (k - begin) / 2;
      nibbles[j * kPanel + lane] |= static_cast<unsigned char>(bits << 4 * ((k - begin) % 2));
    }
  }
}

// The padding outputs of a kInt4 block have scale and minimum 0, and so has the padding of inputs a
// zero input to meet.
void pack_row(const WeightShape& s, const std::vector<float>& row, std::int64_t output,
              unsigned char* block, const Parts& at) {
  const std::int64_t padded = padded_inputs(s.format, s.in_features);
  const std::int64_t lane = output % kPanel;
  unsigned char* panel = block + output / kPanel * panel_bytes(s.format, padded);
  switch (s.format) {
    case WeightFormat::kF32:
      for (std::size_t k = 0; k < row.size(); ++k) {
        std::memcpy(panel + 4 * (static_cast<std::int64_t>(k) * kPanel + lane), &row[k], 4);
      }
      return;
    case WeightFormat::kBF16:
      for (std::size_t i = 0; i < row.size(); ++i) {
        const auto k = static_cast<std::int64_t>(i);
        const std::uint16_t value = to_bf16(row[i]);
        std::memcpy(panel + 2 * ((k / 2 * kPanel + lane) * 2 + k % 2), &value, 2);
      }
      return;
    case WeightFormat::kInt8:
      require_finite(row, output);
      pack_int8(row, lane, reinterpret_cast<std::int8_t*>(panel),
                reinterpret_cast<float*>(block + at.scales)[output]);
      return;
    case WeightFormat::kInt4:
      require_finite(row, output);
      pack_int4(row, lane, panel);
      return;
  }
}

}  // namespace

void ask_for_large_pages(void* memory, std::int64_t bytes) {
#if defined(__linux__)
  // Advice: where it is not taken everything works as well.
  (void)madvise(memory, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
#else
  (void)memory;
  (void)bytes;
#endif
}

std::int64_t packed_bytes(const WeightShape& shape) { return parts_of(shape).total; }

LinearWeight packed_view(const WeightShape& s, const unsigned char* block) {
  const Parts at = parts_of(s);
  const bool scaled = s.format == WeightFormat::kInt8;
  LinearWeight w{};
  w.format = s.format;
  w.in_features = s.in_features;
  w.out_features = s.out_features;
  w.in_padded = padded_inputs(s.format, s.in_features);
  w.out_padded = round_up(s.out_features, kUnit);
  w.panels = block;
  w.scales = scaled ? reinterpret_cast<const float*>(block + at.scales) : nullptr;
  w.bias = s.bias ? reinterpret_cast<const float*>(block + at.bias) : nullptr;
  return w;
}

void pack_weight(const WeightShape& s, DType source, const void* weight, const void* bias,
                 unsigned char* block) {
  if (s.out_features < 1 || s.in_features < 1) {
    throw std::invalid_argument("weight shape [" + std::to_string(s.out_features) + ", " +
                                std::to_string(s.in_features) +
                                "] is not valid: allowed are sizes >= 1.");
  }
  const Parts at = parts_of(s);
  std::memset(block, 0, static_cast<std::size_t>(at.total));
  std::vector<float> row(static_cast<std::size_t>(s.in_features));
  for (std::int64_t output = 0; output < s.out_features; ++output) {
    for (std::int64_t k = 0; k < s.in_features; ++k) {
      row[static_cast<std::size_t>(k)] = read(source, weight, output * s.in_features + k);
    }
    pack_row(s, row, output, block, at);
    if (s.bias) reinterpret_cast<float*>(block + at.bias)[output] = read(source, bias, output);
  }
}

}  // namespace ptd::cpu
