// The attention kernels of every instruction set that is available here: against a reference in
// double precision, and bit for bit against themselves.
//
// A token's query, key and value are a function of its id, so the same tokens can be laid out as a
// tree, as a prompt or one at a time, and must come out alike.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "check.h"
#include "ptd/cpu/kernels.h"

namespace {

using ptd::cpu::AttentionArgs;
using ptd::cpu::DType;
using ptd::cpu::Isa;
using ptd::cpu::Kernels;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int kPoison = -1;  // a token whose key and value are NaN

struct Shape {
  int q_heads, kv_heads, head_dim;
  int group() const { return q_heads / kv_heads; }
};

// Rows of a step: chains of parents (-1: a root), or a causal chain if there are none.
struct Step {
  std::vector<int> committed;  // tokens
  std::vector<int> rows;       // tokens
  std::vector<int> parents;    // of rows, each below its child; empty: causal
};

float round_to(DType dtype, float value) {
  if (dtype == DType::kF32) return value;
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
  std::memcpy(&value, &bits, 4);
  return std::isnan(value) ? kNaN : value;
}

// Element `at` of the query (kind 0), key (1) or value (2) of a token: uniform in [-1, 1).
float element(DType dtype, int kind, int token, int at) {
  if (token == kPoison) return kNaN;
  std::uint64_t x = static_cast<std::uint64_t>(token) * 4 + static_cast<std::uint64_t>(kind);
  x = ((x << 24) + static_cast<std::uint64_t>(at) + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
  x ^= x >> 32;
  return round_to(dtype, static_cast<float>(static_cast<std::int32_t>(x & 0xffffff)) / 8388608 - 1);
}

int size_of(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

class Tensor {
 public:
  Tensor(DType dtype, std::int64_t size) : dtype_(dtype), bytes_(size * size_of(dtype)) {}
  float get(std::int64_t i) const {
    std::uint32_t bits = 0;
    const int width = size_of(dtype_);
    std::memcpy(reinterpret_cast<char*>(&bits) + 4 - width, bytes_.data() + i * width, width);
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  void set(std::int64_t i, float value) {
    const int width = size_of(dtype_);
    const char* upper = reinterpret_cast<const char*>(&value) + 4 - width;
    std::memcpy(bytes_.data() + i * width, upper, width);
  }
  void copy(std::int64_t to, const Tensor& from, std::int64_t begin, std::int64_t n) {
    const int width = size_of(dtype_);
    std::memcpy(bytes_.data() + to * width, from.bytes_.data() + begin * width, n * width);
  }
  unsigned char* data() { return bytes_.data(); }
  std::vector<unsigned char> part(std::int64_t begin, std::int64_t n) const {
    const int width = size_of(dtype_);
    return {bytes_.begin() + begin * width, bytes_.begin() + (begin + n) * width};
  }

 private:
  DType dtype_;
  std::vector<unsigned char> bytes_;
};

// All heads of a query, key or value; kept, as the same tokens come again and again.
const Tensor& vector_of(DType dtype, int kind, int token, int width) {
  static std::map<std::tuple<DType, int, int, int>, Tensor> known;
  if (known.size() > 20000) known.clear();
  const auto [at, added] = known.try_emplace({dtype, kind, token, width}, dtype, width);
  for (int i = 0; added && i < width; ++i) at->second.set(i, element(dtype, kind, token, i));
  return at->second;
}

std::vector<int> ancestors_of(const Step& step, int row) {  // ascending, the row included
  std::vector<int> list;
  for (int at = row; at >= 0; at = step.parents.empty() ? at - 1 : step.parents[at]) {
    list.insert(list.begin(), at);
  }
  return list;
}

// The output of a step: [rows, q_heads * head_dim]. The cache has `slack` rows behind those of the
// step, filled with `slack_value`. Every thread's share is computed in turn, the last one first.
Tensor run(const Kernels& kernels, DType dtype, Shape shape, const Step& step, int team = 1,
           int slack = 5, float slack_value = kNaN) {
  const int rows = static_cast<int>(step.rows.size());
  const int prefix = static_cast<int>(step.committed.size());
  const int dim = shape.head_dim, capacity = prefix + rows + slack;
  const int q_width = shape.q_heads * dim, kv_width = shape.kv_heads * dim;
  Tensor q(dtype, std::int64_t{rows} * q_width), out = q;
  Tensor k(dtype, std::int64_t{capacity} * kv_width), v = k;
  for (int i = 0; i < rows; ++i) {
    q.copy(std::int64_t{i} * q_width, vector_of(dtype, 0, step.rows[i], q_width), 0, q_width);
  }
  for (int t = 0; t < capacity; ++t) {
    const bool dead = t >= prefix + rows;
    const int token = dead ? 0 : t < prefix ? step.committed[t] : step.rows[t - prefix];
    for (int h = 0; h < shape.kv_heads; ++h) {
      const std::int64_t at = (std::int64_t{h} * capacity + t) * dim;
      k.copy(at, vector_of(dtype, 1, token, kv_width), h * dim, dim);
      v.copy(at, vector_of(dtype, 2, token, kv_width), h * dim, dim);
      for (int d = 0; dead && d < dim; ++d) {
        k.set(at + d, slack_value);
        v.set(at + d, slack_value);
      }
    }
  }
  std::vector<std::uint64_t> mask;
  const int words = (rows + 63) / 64;
  if (!step.parents.empty()) {
    mask.resize(std::size_t(rows) * words);
    for (int i = 0; i < rows; ++i) {
      for (int a : ancestors_of(step, i)) {
        mask[std::size_t(i) * words + a / 64] |= std::uint64_t{1} << a % 64;
      }
    }
  }
  AttentionArgs args{};
  args.dtype = dtype;
  args.rows = rows;
  args.q_heads = shape.q_heads;
  args.kv_heads = shape.kv_heads;
  args.head_dim = dim;
  args.q = q.data();
  args.k_cache = k.data();
  args.v_cache = v.data();
  args.kv_head_stride = std::int64_t{capacity} * dim;
  args.mask = step.parents.empty() ? nullptr : mask.data();
  args.prefix_len = &prefix;
  args.scale = 1.0f / std::sqrt(static_cast<float>(dim)) * 3;
  args.out = out.data();
  args.max_keys = prefix + rows;
  std::vector<unsigned char> scratch(ptd::cpu::attention_scratch_bytes(args, team) + 64, 0xff);
  const auto address = reinterpret_cast<std::uintptr_t>(scratch.data());
  args.scratch = scratch.data() + (64 - address % 64) % 64;
  for (const auto stage :
       {kernels.attention_prepare, kernels.attention, kernels.attention_finish}) {
    for (int i = team - 1; i >= 0; --i) stage(args, {i, team});
  }
  return out;
}

std::vector<unsigned char> row_of(const Tensor& out, Shape shape, int row) {
  const std::int64_t width = std::int64_t{shape.q_heads} * shape.head_dim;
  return out.part(row * width, width);
}

std::vector<int> tokens(int first, int n) {
  std::vector<int> list(n);
  for (int i = 0; i < n; ++i) list[i] = first + i;
  return list;
}

// A random tree; `reach`: how far back a parent may lie, 1 is a chain.
Step random_tree(std::mt19937& random, int prefix, int rows, int reach) {
  Step step{tokens(0, prefix), tokens(1000, rows), {-1}};
  for (int i = 1; i < rows; ++i) {
    step.parents.push_back(i - 1 - static_cast<int>(random() % std::min(i, reach)));
  }
  return step;
}

// What plain decoding has at a row: its ancestors committed, itself the only row.
Step alone(const Step& step, int row, bool causal) {
  Step one{step.committed, {step.rows[row]}, {}};
  if (!causal) one.parents = {-1};
  for (int a : ancestors_of(step, row)) {
    if (a != row) one.committed.push_back(step.rows[a]);
  }
  return one;
}

// ---- against the reference ----

// Values lie in [-1, 1), so errors are absolute. fp32: rounding in chains of up to 300 terms. bf16:
// half a unit in the result, and one in each weight where those are rounded.
double tolerance(DType dtype) { return dtype == DType::kF32 ? 4e-6 : 3.0 / 512; }

double reference(DType dtype, Shape shape, const Step& step, int row, int head, int d) {
  const int dim = shape.head_dim, kv_head = head / shape.group();
  std::vector<int> keys = step.committed;
  for (int a : ancestors_of(step, row)) keys.push_back(step.rows[a]);
  std::vector<double> scores;
  for (int key : keys) {
    double dot = 0;
    for (int e = 0; e < dim; ++e) {
      dot += double{element(dtype, 0, step.rows[row], head * dim + e)} *
             element(dtype, 1, key, kv_head * dim + e);
    }
    scores.push_back(dot / std::sqrt(dim) * 3);
  }
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0, result = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const double weight = std::exp(scores[i] - most);
    sum += weight;
    result += weight * element(dtype, 2, keys[i], kv_head * dim + d);
  }
  return result / sum;
}

void agrees_with_the_reference(const std::vector<const Kernels*>& tables) {
  std::mt19937 random(1);
  const Shape heads[] = {{28, 4, 0}, {12, 2, 0}, {14, 2, 0}, {9, 3, 0}, {32, 8, 0}, {16, 1, 0}};
  const int dims[] = {64, 80, 96, 128, 16, 256}, row_counts[] = {1, 2, 5, 17, 33, 64};
  const int prefixes[] = {0, 1, 31, 250, 256, 600};
  for (int i = 0; i < 18; ++i) {
    Shape shape = heads[i % 6];
    shape.head_dim = dims[i % 4];
    if (i >= 16) shape = {4, 2, dims[i - 12]};
    const int rows = row_counts[random() % 6], prefix = prefixes[random() % 6];
    Step step = random_tree(random, prefix, rows, 1 + static_cast<int>(random() % 9));
    if (i % 3 == 0) step.parents.clear();
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      struct Probe {
        int row, head, d;
        double value;
      };
      std::vector<Probe> probes;
      for (int p = 0; p < 12; ++p) {
        Probe probe{static_cast<int>(random() % rows), static_cast<int>(random() % shape.q_heads),
                    static_cast<int>(random() % shape.head_dim), 0};
        if (p == 0) probe = {rows - 1, shape.q_heads - 1, shape.head_dim - 1, 0};
        probe.value = reference(dtype, shape, step, probe.row, probe.head, probe.d);
        probes.push_back(probe);
      }
      for (const Kernels* kernels : tables) {
        // The scalar ones are slow under sanitizers, and of the same source as the others.
        if (kernels == tables.front() && i % 3 != 1 && i < 16) continue;
        const Tensor out = run(*kernels, dtype, shape, step);
        for (const Probe& p : probes) {
          const float got =
              out.get((std::int64_t{p.row} * shape.q_heads + p.head) * shape.head_dim + p.d);
          CHECK(std::fabs(got - p.value) <= tolerance(dtype));
        }
      }
    }
  }
}

// ---- bit for bit ----

struct Setting {
  const Kernels& kernels;
  DType dtype;
  Shape shape;
};

void a_row_of_a_tree_is_a_row_alone(const Setting& s) {
  std::mt19937 random(2);
  const int prefixes[] = {0, 19, 249, 300};
  for (const int prefix : prefixes) {
    const int rows = prefix == 19 ? 37 : 14;
    const Step step = random_tree(random, prefix, rows, 3);
    const Tensor tree = run(s.kernels, s.dtype, s.shape, step);
    for (int row = 0; row < rows; row += 1 + row / 5) {
      for (const bool causal : {false, true}) {
        const Tensor one = run(s.kernels, s.dtype, s.shape, alone(step, row, causal));
        CHECK(row_of(one, s.shape, 0) == row_of(tree, s.shape, row));
      }
    }
  }
}

void other_rows_change_nothing(const Setting& s) {
  std::mt19937 random(3);
  const Step step = random_tree(random, 240, 70, 4);
  const Tensor out = run(s.kernels, s.dtype, s.shape, step);
  const auto same = [&](const Step& other, int row, int other_row, int team, int slack,
                        float fill) {
    const Tensor got = run(s.kernels, s.dtype, s.shape, other, team, slack, fill);
    CHECK(row_of(got, s.shape, other_row) == row_of(out, s.shape, row));
  };
  // All rows that row 40 does not see are NaN, in another team and with other slack.
  Step poisoned = step;
  const std::vector<int> seen = ancestors_of(step, 40);
  for (int i = 0; i < 70; ++i) {
    if (std::find(seen.begin(), seen.end(), i) == seen.end()) poisoned.rows[i] = kPoison;
  }
  same(poisoned, 40, 40, 3, 0, 0);
  same(poisoned, 40, 40, 1, 40, kNaN);
  // Padding rows: they repeat row 0 and see themselves.
  Step padded = step;
  padded.rows.resize(80, step.rows[0]);
  padded.parents.resize(80, -1);
  for (const int row : {0, 13, 69}) same(padded, row, row, 2, 3, kInfinity);
  // The same tree in another order: level by level.
  std::vector<int> order(70), place(70);
  for (int i = 0; i < 70; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return ancestors_of(step, a).size() < ancestors_of(step, b).size();
  });
  for (int i = 0; i < 70; ++i) place[order[i]] = i;
  Step moved = step;
  for (int i = 0; i < 70; ++i) {
    moved.rows[i] = step.rows[order[i]];
    moved.parents[i] = step.parents[order[i]] < 0 ? -1 : place[step.parents[order[i]]];
  }
  for (const int row : {1, 25, 55, 69}) same(moved, row, place[row], 1, 1, 0);
  // A prefix of the rows, which takes the other way through the chunks where it is short.
  for (const int rows : {1, 4, 15, 48}) {
    Step fewer = step;
    fewer.rows.resize(rows);
    fewer.parents.resize(rows);
    same(fewer, rows - 1, rows - 1, 1, 2, kNaN);
  }
}

void a_prompt_may_be_cut_anywhere(const Setting& s) {
  const Step whole{{}, tokens(0, 300), {}};
  const Tensor out = run(s.kernels, s.dtype, s.shape, whole);
  const auto same_from = [&](int first, int n, int team) {
    const Step part{tokens(0, first), tokens(first, n), {}};
    const Tensor got = run(s.kernels, s.dtype, s.shape, part, team);
    for (int i = 0; i < n; ++i) CHECK(row_of(got, s.shape, i) == row_of(out, s.shape, first + i));
  };
  same_from(0, 137, 2);
  same_from(137, 163, 1);
  same_from(250, 9, 4);
  for (int row = 0; row < 300; row += row < 20 || row > 250 ? 7 : 31) same_from(row, 1, 1);
  // Later rows that hold NaN, as they all do once one of them does.
  Step poisoned = whole;
  std::fill(poisoned.rows.begin() + 270, poisoned.rows.end(), kPoison);
  const Tensor got = run(s.kernels, s.dtype, s.shape, poisoned);
  for (int i = 0; i < 270; ++i) CHECK(row_of(got, s.shape, i) == row_of(out, s.shape, i));
  for (int d = 0; d < s.shape.head_dim; ++d) {
    CHECK(std::isnan(got.get(std::int64_t{280} * s.shape.q_heads * s.shape.head_dim + d)));
  }
}

void teams_change_nothing(const Setting& s) {
  std::mt19937 random(4);
  for (const int rows : {1, 6, 50}) {
    const Step step = random_tree(random, 530, rows, 5);
    const Tensor one = run(s.kernels, s.dtype, s.shape, step);
    for (const int team : {2, 4, 7}) {
      const Tensor got = run(s.kernels, s.dtype, s.shape, step, team);
      for (int i = 0; i < rows; ++i) CHECK(row_of(got, s.shape, i) == row_of(one, s.shape, i));
    }
  }
}

}  // namespace

int main() {
  std::vector<const Kernels*> tables;
  for (int i = 0; i < ptd::cpu::kNumIsas; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (ptd::cpu::isa_unavailable(isa).empty()) tables.push_back(&ptd::cpu::kernels(isa));
  }
  agrees_with_the_reference(tables);
  for (const Kernels* kernels : tables) {
    const bool scalar = kernels == tables.front();
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const Shape shape : {Shape{2, 2, 32}, Shape{9, 3, 64}, Shape{7, 1, 80}}) {
        if (scalar && shape.head_dim != 32) continue;
        const Setting setting{*kernels, dtype, shape};
        a_row_of_a_tree_is_a_row_alone(setting);
        other_rows_change_nothing(setting);
        teams_change_nothing(setting);
      }
      for (const Shape shape : {Shape{6, 2, 32}, Shape{5, 1, 48}}) {
        if (scalar && shape.head_dim != 48) continue;
        a_prompt_may_be_cut_anywhere({*kernels, dtype, shape});
      }
    }
  }
}
