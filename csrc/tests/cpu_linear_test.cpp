// Packing, linear and head of every instruction set, against sums in double.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.h"
#include "ptd/cpu/kernels.h"
#include "ptd/cpu/packing.h"

namespace {

using namespace ptd::cpu;

std::uint16_t to_bf16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float from_bf16(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value = 0.0f;
  std::memcpy(&value, &wide, 4);
  return value;
}

// 64-byte aligned memory.
class Block {
 public:
  explicit Block(std::int64_t bytes) : memory_(static_cast<std::size_t>(bytes) + 64, 0xff) {}
  unsigned char* get() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (64 - address % 64) % 64;
  }

 private:
  std::vector<unsigned char> memory_;  // bytes of 0xff are NaN in float and in bf16
};

struct Matrix {
  Matrix(WeightFormat format, std::int64_t out, std::int64_t in, bool bias, unsigned seed)
      : shape{format, out, in, bias},
        weight(static_cast<std::size_t>(out * in)),
        bias_values(static_cast<std::size_t>(out)),
        block(packed_bytes(shape)) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    for (float& w : weight) w = uniform(random);
    for (float& b : bias_values) b = uniform(random);
    pack_weight(shape, DType::kF32, weight.data(), bias_values.data(), block.get());
    view = packed_view(shape, block.get());
  }

  WeightShape shape;
  std::vector<float> weight, bias_values;
  Block block;
  LinearWeight view;
};

DType dtype_for(WeightFormat format) {
  return format == WeightFormat::kF32 ? DType::kF32 : DType::kBF16;
}

// Rows of inputs as the model's type, with the floats they stand for.
struct Inputs {
  Inputs(DType dtype, int rows, std::int64_t in, unsigned seed) : dtype(dtype) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < rows * in; ++i) {
      const float value = normal(random);
      bf16.push_back(to_bf16(value));
      f32.push_back(dtype == DType::kF32 ? value : from_bf16(bf16.back()));
    }
  }
  const void* row(std::int64_t first) const {
    return dtype == DType::kF32 ? static_cast<const void*>(f32.data() + first)
                                : static_cast<const void*>(bf16.data() + first);
  }

  DType dtype;
  std::vector<float> f32;
  std::vector<std::uint16_t> bf16;
};

// fp32 outputs of a team whose threads run one after the other.
std::vector<float> run_linear(Isa isa, const LinearWeight& w, DType dtype, const void* x, int rows,
                              int team) {
  Block scratch(linear_scratch_bytes(w, rows, team));
  std::vector<float> out(static_cast<std::size_t>(rows * w.out_features),
                         std::numeric_limits<float>::quiet_NaN());
  LinearArgs args{};
  args.dtype = dtype;
  args.rows = rows;
  args.x = x;
  args.weight = w;
  args.out = out.data();
  args.out_f32 = true;
  args.scratch = scratch.get();
  for (int t = 0; t < team; ++t) kernels(isa).linear_prepare(args, Share{t, team});
  for (int t = 0; t < team; ++t) kernels(isa).linear(args, Share{t, team});
  return out;
}

struct HeadResult {
  std::vector<std::int32_t> next;
  std::vector<float> logits;
};

HeadResult run_head(Isa isa, const LinearWeight& w, DType dtype, const void* x, int rows, int team,
                    int logit_rows, std::int64_t limit = 0) {
  Block scratch(linear_scratch_bytes(w, rows, team));
  std::vector<float> best(static_cast<std::size_t>(rows * team));
  std::vector<std::int32_t> ids(best.size());
  HeadResult result;
  result.next.assign(static_cast<std::size_t>(rows) * 3, 77);
  result.logits.assign(static_cast<std::size_t>(logit_rows * w.out_features), 0.0f);
  HeadArgs args{};
  args.dtype = dtype;
  args.rows = rows;
  args.logit_rows = logit_rows;
  args.x = x;
  args.weight = w;
  args.logits = result.logits.data();
  args.limit = limit > 0 ? limit : w.out_features;
  args.best_value = best.data();
  args.best_id = ids.data();
  args.next = result.next.data();
  args.next_stride = 3;
  args.scratch = scratch.get();
  for (int t = 0; t < team; ++t) kernels(isa).head_prepare(args, Share{t, team});
  for (int t = 0; t < team; ++t) kernels(isa).head(args, Share{t, team});
  for (int t = 0; t < team; ++t) kernels(isa).head_finish(args, Share{t, team});
  return result;
}

std::vector<Isa> available() {
  std::vector<Isa> isas;
  for (int i = 0; i < kNumIsas; ++i) {
    if (isa_unavailable(static_cast<Isa>(i)).empty()) isas.push_back(static_cast<Isa>(i));
  }
  return isas;
}

const WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt8,
                                 WeightFormat::kInt4};

// What quantisation may cost: half a step of the weight, and of the input for int8, on each
// product.
double tolerance(WeightFormat format, std::int64_t in) {
  const double root = std::sqrt(static_cast<double>(in));
  switch (format) {
    case WeightFormat::kF32:
      return 2e-6 * root;
    case WeightFormat::kBF16:
      return 6e-3 * root;
    case WeightFormat::kInt8:
      return 0.03 * root;
    case WeightFormat::kInt4:
      return 0.15 * root;
  }
  return 0.0;
}

void close_to_double() {
  for (const WeightFormat format : kFormats) {
    for (const auto& [out, in] : {std::pair{70, 96}, {33, 70}, {1, 1}, {64, 576}}) {
      const Matrix m(format, out, in, true, 1);
      const Inputs x(dtype_for(format), 5, in, 2);
      for (const Isa isa : available()) {
        const auto got = run_linear(isa, m.view, x.dtype, x.row(0), 5, 1);
        for (int i = 0; i < 5; ++i) {
          for (std::int64_t o = 0; o < out; ++o) {
            double sum = m.bias_values[static_cast<std::size_t>(o)];
            for (std::int64_t k = 0; k < in; ++k) {
              sum += static_cast<double>(x.f32[static_cast<std::size_t>(i * in + k)]) *
                     m.weight[static_cast<std::size_t>(o * in + k)];
            }
            const double error = std::fabs(got[static_cast<std::size_t>(i * out + o)] - sum);
            CHECK(error <= tolerance(format, in) + 1e-6);
          }
        }
      }
    }
  }
}

void rows_do_not_depend_on_each_other() {
  for (const WeightFormat format : kFormats) {
    for (const std::int64_t in : {70, 128}) {
      const Matrix m(format, 200, in, true, 3);
      const Inputs x(dtype_for(format), 71, in, 4);
      for (const Isa isa : available()) {
        const auto all = run_linear(isa, m.view, x.dtype, x.row(0), 71, 1);
        for (const int team : {2, 4, 9}) {
          CHECK(run_linear(isa, m.view, x.dtype, x.row(0), 71, team) == all);
        }
        for (const int rows : {1, 2, 5, 16, 17, 32, 33, 64}) {
          const int first = 71 - rows;
          const auto some = run_linear(isa, m.view, x.dtype, x.row(first * in), rows, 1);
          CHECK(std::equal(some.begin(), some.end(), all.begin() + first * 200));
        }
      }
    }
  }
}

// An outlier among the inputs must cost nothing beyond its group: here the weights there are zero.
void int8_confines_outliers() {
  Matrix m(WeightFormat::kInt8, 40, 256, false, 5);
  for (std::size_t o = 0; o < 40; ++o) {
    std::fill_n(m.weight.begin() + static_cast<std::ptrdiff_t>(256 * o), 64, 0.0f);
  }
  pack_weight(m.shape, DType::kF32, m.weight.data(), nullptr, m.block.get());
  Inputs x(DType::kBF16, 1, 256, 6);
  x.f32[0] = 1000.0f;
  x.bf16[0] = to_bf16(1000.0f);
  for (const Isa isa : available()) {
    const auto got = run_linear(isa, m.view, x.dtype, x.row(0), 1, 1);
    for (std::size_t o = 0; o < 40; ++o) {
      double sum = 0.0;
      for (std::size_t k = 0; k < 256; ++k) {
        sum += static_cast<double>(x.f32[k]) * m.weight[o * 256 + k];
      }
      CHECK(std::fabs(got[o] - sum) < tolerance(WeightFormat::kInt8, 256));
    }
  }
}

void head_agrees_with_linear() {
  for (const WeightFormat format : kFormats) {
    const Matrix m(format, 203, 96, false, 7);
    const Inputs x(dtype_for(format), 40, 96, 8);
    for (const Isa isa : available()) {
      const auto logits = run_linear(isa, m.view, x.dtype, x.row(0), 40, 1);
      for (const int team : {1, 3, 16}) {
        const HeadResult got = run_head(isa, m.view, x.dtype, x.row(0), 40, team, 11);
        CHECK(std::equal(got.logits.begin(), got.logits.end(), logits.begin()));
        for (int i = 0; i < 40; ++i) {
          const auto row = logits.begin() + i * 203;
          CHECK(got.next[static_cast<std::size_t>(3 * i)] ==
                std::max_element(row, row + 203) - row);
          CHECK(got.next[static_cast<std::size_t>(3 * i + 1)] == 77);
        }
        for (const int limit : {1, 15, 16, 17, 32, 33, 160, 202}) {
          const HeadResult cut = run_head(isa, m.view, x.dtype, x.row(0), 40, team, 11, limit);
          CHECK(cut.logits == got.logits);  // they are written whole
          for (int i = 0; i < 40; ++i) {
            const auto row = logits.begin() + i * 203;
            CHECK(cut.next[static_cast<std::size_t>(3 * i)] ==
                  std::max_element(row, row + limit) - row);
          }
        }
      }
    }
  }
}

// One input that is 1: the logits are the weights. Ties lie across vectors, units and shares.
void head_takes_the_lowest_of_equals_and_reports_what_is_not_finite() {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    std::vector<std::pair<int, float>> values;
    int expected;
    int limit = 100;
  };
  const Case cases[] = {
      {{{15, 3.0f}, {16, 3.0f}}, 15},
      {{{31, 3.0f}, {32, 3.0f}, {99, 3.0f}}, 31},
      {{{0, 3.0f}, {99, 3.0f}}, 0},
      {{{98, 3.0f}, {99, 3.0f}}, 98},
      {{{0, nan}, {5, 1.0f}}, -1},
      {{{50, nan}, {5, 1.0f}}, -1},
      {{{99, nan}}, -1},
      {{{7, infinity}}, -1},
      {{{7, -infinity}, {8, 2.0f}}, 8},
      {{{98, 2.0f}, {99, nan}}, 98, 99},
      {{{40, infinity}, {33, 2.0f}}, 33, 40},
      {{{40, nan}, {33, 2.0f}}, -1, 41},
  };
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBF16}) {
    for (const Case& c : cases) {
      const WeightShape shape{format, 100, 1, false};
      std::vector<float> weight(100, -1.0f);
      for (const auto& [id, value] : c.values) weight[static_cast<std::size_t>(id)] = value;
      Block block(packed_bytes(shape));
      pack_weight(shape, DType::kF32, weight.data(), nullptr, block.get());
      const LinearWeight view = packed_view(shape, block.get());
      const float one = 1.0f;
      const std::uint16_t one_bf16 = to_bf16(one);
      const bool is_f32 = format == WeightFormat::kF32;
      const void* x = is_f32 ? static_cast<const void*>(&one) : &one_bf16;
      for (const Isa isa : available()) {
        for (const int team : {1, 2, 4}) {
          CHECK(run_head(isa, view, dtype_for(format), x, 1, team, 0, c.limit).next[0] ==
                c.expected);
        }
      }
    }
    std::vector<float> nothing(100, -infinity);
    const WeightShape shape{WeightFormat::kF32, 100, 1, false};
    Block block(packed_bytes(shape));
    pack_weight(shape, DType::kF32, nothing.data(), nullptr, block.get());
    const float one = 1.0f;
    for (const Isa isa : available()) {
      const auto view = packed_view(shape, block.get());
      CHECK(run_head(isa, view, DType::kF32, &one, 1, 2, 0).next[0] == -1);
    }
  }
}

void a_row_that_is_not_finite_stays_so_when_quantised() {
  const Matrix m(WeightFormat::kInt8, 40, 64, false, 9);
  Inputs x(DType::kBF16, 2, 64, 10);
  x.bf16[3] = to_bf16(std::numeric_limits<float>::infinity());
  for (const Isa isa : available()) {
    const auto out = run_linear(isa, m.view, x.dtype, x.row(0), 2, 1);
    CHECK(std::isnan(out[0]) && std::isnan(out[39]));
    CHECK(std::isfinite(out[40]) && std::isfinite(out[79]));
  }
}

void packing_refuses_what_it_cannot_quantise() {
  std::vector<float> weight(64, 1.0f);
  weight[40] = std::numeric_limits<float>::quiet_NaN();
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    const WeightShape shape{format, 2, 32, false};
    Block block(packed_bytes(shape));
    CHECK_THROWS(pack_weight(shape, DType::kF32, weight.data(), nullptr, block.get()),
                 std::invalid_argument);
  }
}

// What packing makes of a single row of weights.
std::vector<float> packed_and_read(WeightFormat format, const std::vector<float>& weight) {
  const WeightShape shape{format, 1, static_cast<std::int64_t>(weight.size()), false};
  Block block(packed_bytes(shape));
  pack_weight(shape, DType::kF32, weight.data(), nullptr, block.get());
  const std::int32_t id = 0;
  std::vector<float> out(weight.size());
  EmbedArgs args{};
  args.token_ids = &id;
  args.table = packed_view(shape, block.get());
  args.out = out.data();
  args.rows = 1;
  kernels(Isa::kScalar).embed(args, DType::kF32, Share{0, 1});
  return out;
}

void extreme_weights_are_quantised_to_their_like() {
  const float least = std::numeric_limits<float>::denorm_min();
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    const std::vector<float> zeros(70, 0.0f);
    CHECK(packed_and_read(format, zeros) == zeros);
    // Below 2^-126 a scale has few digits: 180 of the least number are 127 or so, and not -76.
    for (const float top : {1.0f, 63.0f, 180.0f, 1e5f}) {
      std::vector<float> weight(32, 0.0f);
      weight[1] = top * least;
      weight[2] = -top * least;
      const auto read = packed_and_read(format, weight);
      CHECK(std::fabs(read[1]) <= 2 * top * least && std::fabs(read[2]) <= 2 * top * least);
      if (format == WeightFormat::kInt8) CHECK(read[0] == 0.0f && read[1] == -read[2]);
      if (format == WeightFormat::kInt8) CHECK(read[1] >= 0.0f);
    }
  }
  // An outlier takes the resolution of its row, but stays what it is.
  std::vector<float> weight(32, 1.0f);
  weight[7] = 3e38f;
  CHECK(std::fabs(packed_and_read(WeightFormat::kInt8, weight)[7] / 3e38f - 1) < 1e-6f);
  CHECK(std::fabs(packed_and_read(WeightFormat::kInt4, weight)[7] / 3e38f - 1) < 1e-2f);
  // A group whose ends are further apart than a float holds has no scale.
  weight[8] = -3e38f;
  CHECK(std::fabs(packed_and_read(WeightFormat::kInt8, weight)[8] / 3e38f + 1) < 1e-6f);
  CHECK_THROWS(packed_and_read(WeightFormat::kInt4, weight), std::invalid_argument);
}

}  // namespace

int main() {
  close_to_double();
  rows_do_not_depend_on_each_other();
  int8_confines_outliers();
  head_agrees_with_linear();
  head_takes_the_lowest_of_equals_and_reports_what_is_not_finite();
  a_row_that_is_not_finite_stays_so_when_quantised();
  packing_refuses_what_it_cannot_quantise();
  extreme_weights_are_quantised_to_their_like();
}
