// The CUDA select kernel, on the CPU, against a reference that sorts the row in double precision.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "cuda_support.h"
#include "ptd/cuda/select.h"

namespace {

using namespace cuda_test;
using ptd::cuda::SelectMode;
using ptd::cuda::SelectParams;

// One row and what is asked of it.
struct Row {
  std::vector<float> logits;
  float temperature = 1, uniform = 0.5f;
};
struct Sampling {
  float top_k = 0, top_p = 1, min_p = 0, successors_top_p = 0;
};

constexpr int kPad = 3;  // ids behind the vocabulary, which hold NaN

// [rows, 1 + successors]
std::vector<std::int32_t> select(DType dtype, SelectMode mode, const std::vector<Row>& rows,
                                 const Sampling& sampling, int successors, int n_verify) {
  const int n = static_cast<int>(rows.size()), vocab = static_cast<int>(rows[0].logits.size());
  Array logits(dtype, std::int64_t{n} * (vocab + kPad));
  logits.fill(kNaN);
  std::vector<float> temperature, uniform;
  for (int i = 0; i < n; ++i) {
    for (int v = 0; v < vocab; ++v) {
      logits.set(std::int64_t{i} * (vocab + kPad) + v, rows[i].logits[v]);
    }
    temperature.push_back(rows[i].temperature);
    uniform.push_back(rows[i].uniform);
  }
  const std::vector<float> limits = {sampling.top_k, sampling.top_p, sampling.min_p,
                                     sampling.successors_top_p};
  const int width = 1 + successors;
  std::vector<std::int32_t> next(static_cast<std::size_t>(n * width), 7777);
  SelectParams p{};
  p.dtype = dtype;
  p.mode = mode;
  p.rows = n;
  p.vocab = vocab;
  p.n_verify = n_verify;
  p.successors = successors;
  p.logits_stride = vocab + kPad;
  p.next_stride = width;
  p.logits = logits.data();
  p.temperature = temperature.data();
  p.uniform = uniform.data();
  p.sampling = limits.data();
  p.next = next.data();
  CHECK(ptd::cuda::select(p, nullptr) == cudaSuccess);
  return next;
}

// Ids, the largest logit first, equal ones by id.
std::vector<int> ranked(const std::vector<float>& logits) {
  std::vector<int> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  return ids;
}

// The drawn id, or -1 where a rounding of fp32 decides.
int reference_draw(const Row& row, const Sampling& sampling) {
  constexpr double kNear = 2e-6;
  const std::vector<int> order = ranked(row.logits);
  const double peak = double{row.logits[order[0]]};
  const auto mass_of = [&](int id) {
    return std::exp((double{row.logits[id]} - peak) / double{row.temperature});
  };
  std::vector<int> kept = order;
  if (sampling.top_k > 0) {
    kept.resize(std::min(kept.size(), static_cast<std::size_t>(sampling.top_k)));
  }
  double total = 0;
  for (const int id : kept) total += mass_of(id);
  std::vector<char> in(order.size(), 0);
  double before = 0;
  for (std::size_t rank = 0; rank < kept.size(); ++rank) {
    const double mass = mass_of(kept[rank]);
    const double limit = sampling.top_p < 1 ? double{sampling.top_p} * total : 1e300;
    if (rank > 0 && std::fabs(before - limit) < kNear * total) return -1;
    if (sampling.min_p > 0 && rank > 0 && std::fabs(mass - double{sampling.min_p}) < kNear) {
      return -1;
    }
    in[kept[rank]] = (rank == 0 || before < limit) && mass >= double{sampling.min_p};
    before += mass;
  }
  total = 0;
  for (std::size_t id = 0; id < in.size(); ++id)
    total += in[id] ? mass_of(static_cast<int>(id)) : 0;
  const double threshold = double{row.uniform} * total;
  double sum = 0;
  for (std::size_t id = 0; id < in.size(); ++id) {
    if (!in[id]) continue;
    sum += mass_of(static_cast<int>(id));
    if (std::fabs(sum - threshold) < kNear * total) return -1;
    if (sum > threshold) return static_cast<int>(id);
  }
  return -1;
}

enum Kind { kNormal, kPeaked, kFlat, kTied, kSparse };

Row random_row(std::mt19937& rng, DType dtype, int vocab, Kind kind) {
  std::normal_distribution<float> normal(0, kind == kPeaked ? 8.0f : 1.5f);
  const Array rounder(dtype, 1);
  Row row;
  for (int v = 0; v < vocab; ++v) {
    float logit = normal(rng);
    if (kind == kFlat) logit = 0.25f;
    if (kind == kTied) logit = std::round(logit);
    if (kind == kSparse && v % 5 != 1) logit = -kInfinity;
    row.logits.push_back(rounder.rounded(logit));
  }
  row.uniform = std::uniform_real_distribution<float>(0, 0.999f)(rng);
  return row;
}

void test_argmax() {
  for (const int vocab : {1, 5, 511, 1025, 3000}) {
    std::vector<Row> rows(5);
    for (Row& row : rows) row.logits.assign(static_cast<std::size_t>(vocab), -3.0f);
    rows[0].logits[vocab - 1] = 2;
    rows[1].logits[vocab / 2] = rows[1].logits[vocab - 1] = 4;  // a tie goes to the lowest id
    rows[2].logits.assign(static_cast<std::size_t>(vocab), -0.0f);
    rows[2].logits[vocab / 3] = 0.0f;  // -0 equals 0
    rows[3].logits[vocab / 2] = kNaN;
    rows[4].logits[0] = kInfinity;
    for (const DType dtype : kDTypes) {
      const auto next = select(dtype, SelectMode::kGreedy, rows, {}, 0, 5);
      CHECK((next == std::vector<std::int32_t>{vocab - 1, vocab / 2, 0, -1, -1}));
    }
  }
  std::vector<Row> broken(3);
  for (Row& row : broken) row.logits.assign(700, -kInfinity);
  broken[1].logits[5] = -kNaN;
  broken[2].logits[5] = 1;
  const auto next = select(DType::kBFloat16, SelectMode::kSample, broken, {}, 1, 3);
  CHECK(next[0] == -1 && next[2] == -1 && next[4] == 5 && next[5] == 5);
}

void test_draws() {
  const Sampling filters[] = {
      {},    {1},         {7},         {0, 0.9f}, {0, 0.01f}, {0, 1, 0.1f}, {40, 0.8f, 0.02f},
      {900}, {0, 0.999f}, {1e9f, 0.5f}};
  std::mt19937 rng(3);
  int compared = 0, undecided = 0, at = 0;
  for (const int vocab : {1, 33, 1024, 1025, 4100}) {
    for (const Kind kind : {kNormal, kPeaked, kFlat, kTied, kSparse}) {
      if (kind == kSparse && vocab == 1) continue;
      const Sampling& sampling = filters[at % 10];
      cuda_shim::set_order(kOrders[at % 3], static_cast<std::uint64_t>(at));
      const DType dtype = kDTypes[at % 3];
      ++at;
      std::vector<Row> rows;
      for (const float temperature : {1.0f, 0.3f, 3.0f, 20.0f}) {
        rows.push_back(random_row(rng, dtype, vocab, kind));
        rows.back().temperature = temperature;
      }
      const auto next = select(dtype, SelectMode::kFilter, rows, sampling, 0, 4);
      const auto plain = select(dtype, SelectMode::kSample, rows, sampling, 0, 4);
      for (int i = 0; i < 4; ++i) {
        const int wanted = reference_draw(rows[i], sampling);
        const int unfiltered = reference_draw(rows[i], {});
        CHECK(wanted < 0 || next[i] == wanted);
        CHECK(unfiltered < 0 || plain[i] == unfiltered);
        compared += 2;
        undecided += (wanted < 0) + (unfiltered < 0);
      }
    }
  }
  CHECK(undecided * 10 < compared);
}

// What samples, and what only takes the argmax.
void test_which_rows_draw() {
  std::vector<Row> rows(3);
  for (Row& row : rows) row = Row{{0.0f, 1.0f, 0.5f, 0.0f}, 1.0f, 0.999f};
  rows[1].temperature = 0;
  const auto next = select(DType::kFloat32, SelectMode::kSample, rows, {}, 0, 2);
  CHECK((next == std::vector<std::int32_t>{3, 1, 1}));
  const auto greedy = select(DType::kFloat32, SelectMode::kGreedy, rows, {}, 0, 3);
  CHECK((greedy == std::vector<std::int32_t>{1, 1, 1}));
}

void test_extremes() {
  const auto one = [](std::vector<float> logits, float temperature, Sampling sampling) {
    const Row row{std::move(logits), temperature, 0.9f};
    return select(DType::kFloat32, SelectMode::kFilter, {row}, sampling, 0, 1)[0];
  };
  for (const float temperature : {1e-45f, 1e-30f, 1e-9f, 3e-4f}) {
    CHECK(one({9, 10, -100}, temperature, {}) == 1);
    CHECK(one({9, 10, -100}, temperature, {0, 0.5f, 0.3f}) == 1);
  }
  CHECK(one({9, 10, -100}, 1, {0, 1e-9f}) == 1);
  CHECK(one({3, 3, 0}, 1, {1}) == 0);
  CHECK(one({3, 3, 3}, 1, {0, 1, 1}) == 2);  // min_p of 1 keeps what equals the largest
  CHECK(one({0, 1, 2, 3}, 3e38f, {}) == 3);  // all alike
  CHECK(one({0, 1, 2, 3}, 3e38f, {2}) == 3);
}

void test_successors() {
  std::mt19937 rng(5);
  int at = 0;
  for (const int vocab : {40, 1030, 5000}) {
    for (const Kind kind : {kNormal, kPeaked, kFlat, kTied}) {
      for (const int k : {1, 10, 256}) {
        if (k > vocab) continue;
        cuda_shim::set_order(kOrders[at % 3], static_cast<std::uint64_t>(at));
        const DType dtype = kDTypes[at++ % 3];
        const std::vector<Row> rows = {random_row(rng, dtype, vocab, kind)};
        const float top_p = at % 2 == 0 ? 0.0f : 0.8f;
        const auto next = select(dtype, SelectMode::kGreedy, rows, {0, 1, 0, top_p}, k, 1);
        const std::vector<int> order = ranked(rows[0].logits);
        const auto mass = [&](int id) {
          return std::exp(double{rows[0].logits[id]} - double{rows[0].logits[order[0]]});
        };
        double total = 0, before = 0;
        for (const int id : order) total += mass(id);
        for (int j = 0; j < k; ++j) {
          const bool near = std::fabs(before - double{top_p} * total) < 1e-6 * total;
          const bool beyond = top_p > 0 && j > 0 && before >= double{top_p} * total;
          CHECK(near || next[1 + j] == (beyond ? -1 : order[j]));
          before += mass(order[j]);
        }
        CHECK(next[0] == order[0]);
      }
    }
  }
  // More are asked for than have any mass.
  Row sparse{std::vector<float>(600, -kInfinity)};
  sparse.logits[77] = 1;
  const auto next = select(DType::kFloat16, SelectMode::kGreedy, {sparse}, {}, 4, 1);
  CHECK(next[0] == 77 && next[1] == 77);
  for (int j = 2; j < 5; ++j) CHECK(next[j] >= 0 && next[j] < 600 && next[j] != 77);
}

// A row gets the same next to any other rows, in any order of threads.
void test_alone() {
  std::mt19937 rng(9);
  std::vector<Row> rows;
  for (int i = 0; i < 4; ++i) rows.push_back(random_row(rng, DType::kBFloat16, 3000, kNormal));
  cuda_shim::set_order(Order::kForward);
  const auto all = select(DType::kBFloat16, SelectMode::kFilter, rows, {0, 0.95f, 0.01f}, 5, 4);
  for (int i = 0; i < 4; ++i) {
    cuda_shim::set_order(Order::kRandom, static_cast<std::uint64_t>(i));
    const auto alone =
        select(DType::kBFloat16, SelectMode::kFilter, {rows[i]}, {0, 0.95f, 0.01f}, 5, 1);
    CHECK(std::equal(alone.begin(), alone.end(), all.begin() + 6 * i));
  }
}

// What a launcher refuses, and what it does not need.
void test_refusals() {
  const std::vector<float> logits = {0, 2, 1}, one = {1};
  std::int32_t next[3] = {7, 7, 7};
  SelectParams good{};
  good.rows = 1;
  good.vocab = 3;
  good.n_verify = 1;
  good.logits_stride = good.next_stride = 3;
  good.logits = logits.data();
  good.next = next;
  CHECK(ptd::cuda::select(good, nullptr) == cudaSuccess && next[0] == 1);  // greedy reads no more
  const auto refused = [&](auto change) {
    SelectParams p = good;
    change(p);
    return ptd::cuda::select(p, nullptr) == cudaErrorInvalidValue;
  };
  CHECK(refused([](SelectParams& p) { p = SelectParams{}; }));
  CHECK(refused([](SelectParams& p) { p.dtype = DType{-1}; }));
  CHECK(refused([](SelectParams& p) { p.rows = -1; }));
  CHECK(refused([](SelectParams& p) { p.vocab = ptd::cuda::kMaxVocab + 1; }));
  CHECK(refused([](SelectParams& p) { p.successors = 4; }));
  CHECK(refused([](SelectParams& p) { p.successors = 1; }));  // without `sampling`
  CHECK(refused([](SelectParams& p) { p.mode = SelectMode::kSample; }));
  CHECK(refused([](SelectParams& p) { p.logits = nullptr; }));
  CHECK(refused([](SelectParams& p) { p.next = nullptr; }));
  CHECK(refused([&](SelectParams& p) {
    p.mode = SelectMode::kFilter;
    p.temperature = p.uniform = one.data();
  }));
  SelectParams none = good;
  none.rows = 0;
  none.logits = nullptr;
  CHECK(ptd::cuda::select(none, nullptr) == cudaSuccess);
}

}  // namespace

int main() {
  test_argmax();
  test_draws();
  test_which_rows_draw();
  test_extremes();
  test_successors();
  test_alone();
  test_refusals();
  return 0;
}
