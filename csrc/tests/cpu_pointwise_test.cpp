#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "ptd/cpu/kernels.h"

namespace {

using ptd::cpu::DType;
using ptd::cpu::Kernels;
using ptd::cpu::WeightFormat;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr float kEps = 1e-5f;

// The nearest number that T holds, ties to even (numbers of ordinary size).
double rounded(DType dtype, double x) {
  if (!std::isfinite(x)) return x;
  const int bits = dtype == DType::kF32 ? 24 : 8;
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

// An array of T that reads and writes as double. Behind it lie 16 elements of NaN, which kernels
// must neither use nor touch.
class Values {
 public:
  Values(DType dtype, std::size_t n)
      : dtype_(dtype), size_(n), bytes_((n + 16) * (dtype == DType::kF32 ? 4 : 2)) {
    for (std::size_t i = 0; i < n + 16; ++i) set(i, kNaN);
  }
  static Values random(DType dtype, std::size_t n, std::mt19937& rng) {
    Values v(dtype, n);
    for (std::size_t i = 0; i < n; ++i)
      v.set(i, (static_cast<double>(rng()) / 4294967296 - 0.5) * 6);
    return v;
  }
  void* data() { return bytes_.data(); }
  void* at(std::size_t i) { return bytes_.data() + i * width(); }
  std::size_t size() const { return size_; }
  std::size_t width() const { return dtype_ == DType::kF32 ? 4 : 2; }
  void set(std::size_t i, double value) {
    const auto single = static_cast<float>(rounded(dtype_, value));
    std::uint32_t bits = 0;
    std::memcpy(&bits, &single, 4);
    const auto upper = static_cast<std::uint16_t>(bits >> 16);
    if (width() == 4) std::memcpy(&bytes_[4 * i], &bits, 4);
    if (width() == 2) std::memcpy(&bytes_[2 * i], &upper, 2);
  }
  double operator[](std::size_t i) const {
    std::uint32_t bits = 0;
    std::uint16_t upper = 0;
    if (width() == 4) std::memcpy(&bits, &bytes_[4 * i], 4);
    if (width() == 2) {
      std::memcpy(&upper, &bytes_[2 * i], 2);
      bits = static_cast<std::uint32_t>(upper) << 16;
    }
    float single = 0;
    std::memcpy(&single, &bits, 4);
    return static_cast<double>(single);
  }
  bool operator==(const Values& other) const { return bytes_ == other.bytes_; }
  bool same_row(const Values& other, std::size_t begin, std::size_t n, std::size_t theirs) const {
    return std::memcmp(&bytes_[begin * width()], &other.bytes_[theirs * width()], n * width()) == 0;
  }
  // Every element within `units` roundings of the expected one, or within `error`, and the NaN
  // behind them untouched. In bfloat16 nearly all are equal: the error of fp32 arithmetic seldom
  // reaches across a rounding, so a rounding too many or too few shows.
  void check_near(const std::vector<double>& expected, double units, double error = 1e-30) const {
    const double unit = dtype_ == DType::kF32 ? std::ldexp(1.0, -24) : std::ldexp(1.0, -8);
    CHECK(expected.size() == size_);
    std::size_t unequal = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      const double got = (*this)[i];
      if (std::isfinite(expected[i])) {
        CHECK(std::abs(got - expected[i]) <= units * unit * std::abs(expected[i]) + error);
        unequal += got != expected[i] ? 1 : 0;
      } else {
        CHECK(std::isnan(expected[i]) ? std::isnan(got) : got == expected[i]);
      }
    }
    CHECK(dtype_ == DType::kF32 || unequal <= size_ / 100 + 1);
    CHECK(Values(dtype_, 0).same_row(*this, 0, 16, size_));
  }

 private:
  DType dtype_;
  std::size_t size_;
  std::vector<unsigned char> bytes_;
};

void each_kernel_set(const std::function<void(const Kernels&, DType)>& body) {
  for (int isa = 0; isa < ptd::cpu::kNumIsas; ++isa) {
    if (!ptd::cpu::isa_unavailable(static_cast<ptd::cpu::Isa>(isa)).empty()) continue;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      body(ptd::cpu::kernels(static_cast<ptd::cpu::Isa>(isa)), dtype);
    }
  }
}

// All threads of a team, one after the other.
template <class Kernel, class... Args>
void run_team(int team, Kernel kernel, const Args&... args) {
  for (int i = 0; i < team; ++i) kernel(args..., {i, team});
}

std::size_t sz(int n) { return static_cast<std::size_t>(n); }

std::vector<double> normalised(DType dtype, const Values& row, std::size_t begin, std::size_t n,
                               const Values& weight) {
  double squares = 0;
  for (std::size_t i = 0; i < n; ++i) squares += row[begin + i] * row[begin + i];
  const double root = std::sqrt(squares / static_cast<double>(n) + static_cast<double>(kEps));
  std::vector<double> out;
  for (std::size_t i = 0; i < n; ++i) {
    out.push_back(rounded(dtype, rounded(dtype, row[begin + i] / root) * weight[i]));
  }
  return out;
}

void the_norm_follows_its_definition() {
  each_kernel_set([](const Kernels& k, DType dtype) {
    std::mt19937 rng(1);
    for (const int hidden : {1, 2, 15, 16, 17, 63, 64, 65, 130, 576}) {
      for (const bool adds : {false, true}) {
        constexpr int kRows = 5;
        const std::size_t n = sz(kRows * hidden);
        Values x = Values::random(dtype, n, rng), before = Values::random(dtype, n, rng);
        Values weight = Values::random(dtype, sz(hidden), rng);
        std::vector<double> sums;
        for (std::size_t i = 0; i < n; ++i) {
          sums.push_back(rounded(dtype, before[i] + (adds ? x[i] : 0.0)));
        }
        Values residual = before, out(dtype, n);
        const auto args = [&](Values& sum, Values& to) {
          return ptd::cpu::AddRmsNormArgs{
              dtype,      kRows,         hidden, adds ? x.data() : nullptr,
              sum.data(), weight.data(), kEps,   to.data()};
        };
        run_team(1, k.add_rms_norm, args(residual, out));
        residual.check_near(sums, 1);
        std::vector<double> expected;
        for (int r = 0; r < kRows; ++r) {
          const auto row = normalised(dtype, residual, sz(r * hidden), sz(hidden), weight);
          expected.insert(expected.end(), row.begin(), row.end());
        }
        out.check_near(expected, dtype == DType::kF32 ? 16 : 4);
        for (const int team : {2, 4}) {
          Values sum = before, to(dtype, n);
          run_team(team, k.add_rms_norm, args(sum, to));
          CHECK(sum == residual && to == out);
        }
        // The last row alone.
        Values sum = before, alone(dtype, sz(hidden));
        auto last = args(sum, alone);
        const std::size_t begin = sz((kRows - 1) * hidden);
        last.rows = 1;
        last.x = adds ? x.at(begin) : nullptr;
        last.residual = sum.at(begin);
        run_team(2, k.add_rms_norm, last);
        CHECK(alone.same_row(out, 0, sz(hidden), begin));
        CHECK(sum.same_row(residual, begin, sz(hidden), begin));
      }
    }
  });
}

void a_gate_multiplies() {
  each_kernel_set([](const Kernels& k, DType dtype) {
    std::mt19937 rng(2);
    for (const int inner : {1, 15, 16, 63, 64, 65, 100, 300, 1536}) {
      constexpr int kRows = 3;
      Values gate_up = Values::random(dtype, sz(kRows * 2 * inner), rng);
      // Numbers at which a naive exponential overflows or multiplies zero by infinity.
      const double inf = std::numeric_limits<double>::infinity();
      const double extremes[] = {0, -1, 20, -20, 89, -89, 1e4, -1e4, 1e38, -1e38, inf, kNaN};
      for (int i = 0; i < 12 && i < inner; ++i) gate_up.set(sz(2 * inner + i), extremes[i]);
      std::vector<double> expected;
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < inner; ++i) {
          const double gate = gate_up[sz(r * 2 * inner + i)];
          const double gated = rounded(dtype, gate / (1 + std::exp(-gate)));
          expected.push_back(rounded(dtype, gated * gate_up[sz((r * 2 + 1) * inner + i)]));
        }
      }
      const auto run = [&](int team) {
        Values out(dtype, sz(kRows * inner));
        run_team(team, k.silu_mul,
                 ptd::cpu::SiluMulArgs{dtype, kRows, inner, gate_up.data(), out.data()});
        return out;
      };
      const Values out = run(1);
      out.check_near(expected, dtype == DType::kF32 ? 16 : 4);
      CHECK(run(2) == out && run(4) == out && run(7) == out);
      Values alone(dtype, sz(inner));
      run_team(4, k.silu_mul,
               ptd::cpu::SiluMulArgs{dtype, 1, inner, gate_up.at(sz(4 * inner)), alone.data()});
      CHECK(alone.same_row(out, 0, sz(inner), sz(2 * inner)));
    }
  });
}

// Queries and keys normalised where asked, rotated; values as they are; no other cache row touched.
void heads_rotate_into_the_cache() {
  constexpr int kRows = 3, kQueries = 4, kKeys = 2, kCapacity = 9, kPrefix = 5, kMaxPos = 20;
  each_kernel_set([](const Kernels& k, DType dtype) {
    std::mt19937 rng(3);
    for (const int dim : {2, 6, 30, 32, 34, 64, 80, 128}) {
      for (const bool norm : {false, true}) {
        const std::size_t heads = kQueries + 2 * kKeys, d = sz(dim), half = d / 2;
        const std::size_t stride = kCapacity * d + 3;
        Values qkv = Values::random(dtype, kRows * heads * d, rng);
        Values q_norm = Values::random(dtype, d, rng), k_norm = Values::random(dtype, d, rng);
        std::vector<float> cos_sin(kMaxPos * d);
        for (std::size_t p = 0; p < kMaxPos; ++p) {
          for (std::size_t i = 0; i < half; ++i) {
            const double angle = static_cast<double>(p) / (1.0 + static_cast<double>(i));
            cos_sin[p * d + i] = static_cast<float>(std::cos(angle));
            cos_sin[p * d + half + i] = static_cast<float>(std::sin(angle));
          }
        }
        const std::int32_t positions[kRows] = {5, 7, 6}, prefix = kPrefix;
        std::vector<double> q_expected(kRows * kQueries * d, kNaN);
        std::vector<double> k_expected(kKeys * stride, kNaN), v_expected = k_expected;
        for (std::size_t r = 0; r < kRows; ++r) {
          for (std::size_t h = 0; h < heads; ++h) {
            const std::size_t begin = (r * heads + h) * d;
            const bool is_query = h < kQueries, is_value = h >= kQueries + kKeys;
            std::vector<double> x;
            for (std::size_t i = 0; i < d; ++i) x.push_back(qkv[begin + i]);
            if (norm) x = normalised(dtype, qkv, begin, d, is_query ? q_norm : k_norm);
            const std::size_t row = (h - kQueries) % kKeys * stride + (kPrefix + r) * d;
            const float* table = &cos_sin[sz(positions[r]) * d];
            for (std::size_t i = 0; i < half; ++i) {
              const double c = static_cast<double>(table[i]),
                           s = static_cast<double>(table[half + i]);
              auto& to = is_query ? q_expected : k_expected;
              const std::size_t at = is_query ? (r * kQueries + h) * d : row;
              if (is_value) {
                v_expected[row + i] = qkv[begin + i];
                v_expected[row + half + i] = qkv[begin + half + i];
              } else {
                to[at + i] = rounded(dtype, x[i] * c - x[half + i] * s);
                to[at + half + i] = rounded(dtype, x[half + i] * c + x[i] * s);
              }
            }
          }
        }
        struct Result {
          Values q, keys, values;
        };
        const auto run = [&](int team, int first, int rows) {
          Result to{Values(dtype, sz(rows * kQueries) * d), Values(dtype, kKeys * stride),
                    Values(dtype, kKeys * stride)};
          const std::int32_t length = prefix + first;
          run_team(team, k.rope_kv_write,
                   ptd::cpu::RopeKvArgs{
                       dtype, rows, kQueries, kKeys, dim, qkv.at(sz(first) * heads * d),
                       norm ? q_norm.data() : nullptr, norm ? k_norm.data() : nullptr, kEps,
                       cos_sin.data(), positions + first, &length, to.keys.data(), to.values.data(),
                       static_cast<std::int64_t>(stride), to.q.data()});
          return to;
        };
        const Result all = run(1, 0, kRows);
        // A rotation may cancel: what is left has the error of what went in, about 4.
        const double units = dtype == DType::kF32 ? 16 : 2,
                     error = dtype == DType::kF32 ? 4e-6 : 0.1;
        all.q.check_near(q_expected, units, error);
        all.keys.check_near(k_expected, units, error);
        all.values.check_near(v_expected, 0);
        for (const int team : {2, 4, 16}) {
          const Result shared = run(team, 0, kRows);
          CHECK(shared.q == all.q && shared.keys == all.keys && shared.values == all.values);
        }
        const Result last = run(2, kRows - 1, 1);
        CHECK(last.q.same_row(all.q, 0, kQueries * d, (kRows - 1) * kQueries * d));
        for (std::size_t h = 0; h < kKeys; ++h) {
          const std::size_t row = h * stride + (kPrefix + kRows - 1) * d;
          CHECK(last.keys.same_row(all.keys, row, d, row));
          CHECK(last.values.same_row(all.values, row, d, row));
        }
      }
    }
  });
}

void accepted_rows_close_up() {
  constexpr int kLayers = 2, kHeads = 3, kDim = 6, kCapacity = 12, kBase = 2;
  each_kernel_set([](const Kernels& k, DType dtype) {
    std::mt19937 rng(4);
    const std::vector<std::vector<std::int32_t>> paths = {
        {}, {2}, {2, 3, 4}, {3}, {3, 4, 6}, {2, 5, 6, 7}, {4, 5, 6, 7, 8, 9, 10, 11}, {11}};
    for (const auto& path : paths) {
      constexpr std::size_t kSize = kLayers * kHeads * kCapacity * kDim;
      const Values keys = Values::random(dtype, kSize, rng);
      const Values values = Values::random(dtype, kSize, rng);
      const auto moved = [&](const Values& from) {
        std::vector<double> to;
        for (std::size_t i = 0; i < kSize; ++i) to.push_back(from[i]);
        for (std::size_t head = 0; head < kLayers * kHeads; ++head) {
          for (std::size_t i = 0; i < path.size(); ++i) {
            for (std::size_t d = 0; d < kDim; ++d) {
              to[(head * kCapacity + kBase + i) * kDim + d] =
                  from[(head * kCapacity + sz(path[i])) * kDim + d];
            }
          }
        }
        return to;
      };
      for (const int team : {1, 2, 4, 13}) {
        Values to_keys = keys, to_values = values;
        const auto n = static_cast<std::int32_t>(path.size());
        const std::int32_t length = kBase + n;
        run_team(team, k.kv_commit,
                 ptd::cpu::KvCommitArgs{dtype, kLayers, kHeads, kDim, to_keys.data(),
                                        to_values.data(), kCapacity, path.data(), &length, n});
        to_keys.check_near(moved(keys), 0);
        to_values.check_near(moved(values), 0);
      }
    }
  });
}

// A matrix of random codes in the panels that LinearWeight describes, and its value at (row,
// column).
struct PackedTable {
  static constexpr int kRows = 37, kPaddedRows = 64, kColumns = 70, kPadded = 128;
  WeightFormat format;
  std::vector<unsigned char> panels;
  std::vector<float> scales;

  PackedTable(WeightFormat f, std::mt19937& rng) : format(f), panels(kPaddedRows * kPadded * 4) {
    for (auto& byte : panels) byte = static_cast<unsigned char>(rng() >> 24);
    for (int i = 0; i < kPaddedRows; ++i) scales.push_back(0.001f * static_cast<float>(i + 1));
    // Random bits are no good floats: those of the formats that hold any are of ordinary size.
    if (format == WeightFormat::kF32) {
      for (std::size_t at = 0; at < panels.size(); at += 4) tame(at + 3);
    }
    if (format == WeightFormat::kBF16) {
      for (std::size_t at = 0; at < panels.size(); at += 2) tame(at + 1);
    }
    if (format == WeightFormat::kInt4) {
      for (std::size_t block = 0; block + 320 <= panels.size(); block += 320) {
        for (std::size_t at = 0; at < 64; at += 2) tame(block + at + 1);
      }
    }
  }
  void tame(std::size_t top) {  // the byte with the sign: from 2^-7 to 2
    panels[top] = static_cast<unsigned char>(panels[top] % 4 + (panels[top] & 128) + 60);
  }
  float float_at(std::size_t at) const {
    float value = 0;
    std::memcpy(&value, &panels[at], 4);
    return value;
  }
  float bf16_at(std::size_t at) const {
    const std::uint32_t bits = static_cast<std::uint32_t>(panels[at + 1]) << 24 |
                               static_cast<std::uint32_t>(panels[at]) << 16;
    float value = 0;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  float value(std::size_t row, std::size_t column) const {
    const std::size_t panel = row / 16, c = row % 16;
    if (format == WeightFormat::kF32) return float_at(((panel * kPadded + column) * 16 + c) * 4);
    if (format == WeightFormat::kBF16) {
      return bf16_at(2 * (((panel * kPadded / 2 + column / 2) * 16 + c) * 2 + column % 2));
    }
    if (format == WeightFormat::kInt8) {
      const std::size_t at = ((panel * kPadded / 4 + column / 4) * 16 + c) * 4 + column % 4;
      return static_cast<float>(static_cast<std::int8_t>(panels[at])) * scales[row];
    }
    const std::size_t block = (panel * kPadded / 32 + column / 32) * 320;
    const unsigned pair = panels[block + 64 + column % 32 / 2 * 16 + c];
    const float q = static_cast<float>(column % 2 == 0 ? pair & 15u : pair >> 4);
    return q * bf16_at(block + 2 * c) + bf16_at(block + 32 + 2 * c);
  }
};

void embedding_rows_come_out_of_every_packing() {
  each_kernel_set([](const Kernels& k, DType dtype) {
    std::mt19937 rng(5);
    for (const WeightFormat format :
         {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt8, WeightFormat::kInt4}) {
      const PackedTable table(format, rng);
      const ptd::cpu::LinearWeight weight = {format,
                                             PackedTable::kColumns,
                                             PackedTable::kRows,
                                             PackedTable::kPadded,
                                             PackedTable::kPaddedRows,
                                             table.panels.data(),
                                             table.scales.data(),
                                             nullptr};
      const std::vector<std::int32_t> ids = {0, 36, 15, 16, 17, 0};
      std::vector<double> expected;
      for (const auto id : ids) {
        for (std::size_t j = 0; j < PackedTable::kColumns; ++j) {
          expected.push_back(rounded(dtype, static_cast<double>(table.value(sz(id), j))));
        }
      }
      for (const int team : {1, 2, 4, 16}) {
        for (const int rows : {1, 6}) {
          Values out(dtype, sz(rows) * PackedTable::kColumns);
          run_team(team, k.embed, ptd::cpu::EmbedArgs{ids.data(), weight, out.data(), rows}, dtype);
          out.check_near({expected.begin(), expected.begin() + static_cast<long>(out.size())}, 0);
        }
      }
    }
  });
}

}  // namespace

int main() {
  the_norm_follows_its_definition();
  a_gate_multiplies();
  heads_rotate_into_the_cache();
  accepted_rows_close_up();
  embedding_rows_come_out_of_every_packing();
}
