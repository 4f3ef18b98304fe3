// The CUDA attention kernels, on the CPU: against a reference in double precision, and tree rows
// bit for bit against the same path decoded one token at a time.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "cuda_support.h"
#include "ptd/cuda/tree_attention.h"

namespace {

using namespace cuda_test;
using ptd::cuda::TreeAttentionParams;

struct Shape {
  DType dtype;
  int head_dim, q_heads, kv_heads;
  int split_tiles;
};

// A step: parents[i] < i, or -1 for a child of the prefix. A chain is one without a mask.
struct Step {
  int prefix;
  std::vector<int> parents;
  bool chain = false;
  int rows() const { return static_cast<int>(parents.size()); }
  // The row's path, the row itself at the end.
  std::vector<int> path(int row) const {
    std::vector<int> nodes;
    for (int i = row; i >= 0; i = parents[i]) nodes.push_back(i);
    std::reverse(nodes.begin(), nodes.end());
    return nodes;
  }
};

Step random_tree(std::mt19937& rng, int prefix, int rows, int width) {
  Step step{prefix, {}};
  for (int i = 0; i < rows; ++i) {
    const int oldest = std::max(-1, i - width);
    step.parents.push_back(
        std::uniform_int_distribution<int>(i == 0 ? -1 : std::max(oldest, 0), i - 1)(rng));
  }
  return step;
}

Step chain_of(int prefix, int rows, bool masked) {
  Step step{prefix, {}, !masked};
  for (int i = 0; i < rows; ++i) step.parents.push_back(i - 1);
  return step;
}

// Queries, keys and values of a prefix and the rows behind it.
struct Values {
  Values(const Shape& shape, const Step& step, int seed)
      : q(shape.dtype, std::int64_t{step.rows()} * shape.q_heads * shape.head_dim),
        k(shape.dtype, std::int64_t{step.prefix + step.rows()} * shape.kv_heads * shape.head_dim),
        v(shape.dtype, k.size()) {
    std::mt19937 rng(static_cast<unsigned>(seed));
    q.fill_random(rng, 2.0f);
    k.fill_random(rng, 2.0f);
    v.fill_random(rng);
  }
  Array q, k, v;  // k, v: [prefix + rows, Hkv, D]
};

constexpr float kScale = 0.3f;
constexpr int kSlack = 5;  // dead rows behind the last one

// One launch. `rows`: cache row -> row of `values`; `queries`: row of the step -> row of values.q.
Array attend(const Shape& shape, const Values& values, const std::vector<int>& rows,
             const std::vector<int>& queries, const std::vector<std::uint64_t>* mask,
             std::int64_t prefix_offset = 0) {
  const int n = static_cast<int>(queries.size()), dim = shape.head_dim;
  const std::int64_t live = static_cast<std::int64_t>(rows.size()), capacity = live + kSlack;
  const std::int64_t row_stride = dim + 16;  // a cache that is a view
  Array q(shape.dtype, std::int64_t{n} * shape.q_heads * dim);
  Array k(shape.dtype, capacity * row_stride * shape.kv_heads), v(shape.dtype, k.size());
  Array out(shape.dtype, q.size());
  k.fill(kNaN);
  v.fill(kNaN);
  out.fill(kNaN);
  for (int i = 0; i < n; ++i) {
    q.copy(std::int64_t{i} * shape.q_heads * dim, values.q,
           std::int64_t{queries[i]} * shape.q_heads * dim, shape.q_heads * dim);
  }
  for (int h = 0; h < shape.kv_heads; ++h) {
    for (std::int64_t t = 0; t < live; ++t) {
      const std::int64_t from = (std::int64_t{rows[t]} * shape.kv_heads + h) * dim;
      k.copy((h * capacity + t) * row_stride, values.k, from, dim);
      v.copy((h * capacity + t) * row_stride, values.v, from, dim);
    }
  }
  const std::int32_t prefix_len = static_cast<std::int32_t>(live - n - prefix_offset);
  TreeAttentionParams p{};
  p.dtype = shape.dtype;
  p.rows = n;
  p.q_heads = shape.q_heads;
  p.kv_heads = shape.kv_heads;
  p.head_dim = dim;
  p.split_tiles = shape.split_tiles;
  p.kv_bound = capacity;
  p.kv_head_stride = capacity * row_stride;
  p.kv_row_stride = row_stride;
  p.scale = kScale;
  p.q = q.data();
  p.k_cache = k.data();
  p.v_cache = v.data();
  p.mask = mask == nullptr ? nullptr : mask->data();
  p.prefix_len = &prefix_len;
  p.prefix_offset = prefix_offset;
  // What an earlier step left is no state of this one.
  std::vector<float> workspace(static_cast<std::size_t>(attention_workspace_bytes(p)) / 4, kNaN);
  p.workspace = workspace.data();
  p.out = out.data();
  CHECK(ptd::cuda::tree_attention(p, nullptr) == cudaSuccess);
  return out;
}

Array attend(const Shape& shape, const Values& values, const Step& step) {
  const int n = step.rows(), words = (n + 63) / 64;
  std::vector<int> rows, queries;
  for (int t = 0; t < step.prefix + n; ++t) rows.push_back(t);
  for (int i = 0; i < n; ++i) queries.push_back(i);
  if (step.chain) return attend(shape, values, rows, queries, nullptr);
  std::vector<std::uint64_t> mask(static_cast<std::size_t>(n * words));
  for (int i = 0; i < n; ++i) {
    for (const int node : step.path(i)) mask[i * words + node / 64] |= 1ull << (node % 64);
    // Bits behind the rows stand for nothing.
    if (n % 64 != 0) mask[i * words + words - 1] |= ~0ull << (n % 64);
  }
  return attend(shape, values, rows, queries, &mask);
}

void check_against_reference(const Shape& shape, const Values& values, const Step& step,
                             const Array& out) {
  const int dim = shape.head_dim, group = shape.q_heads / shape.kv_heads;
  for (int i = 0; i < step.rows(); ++i) {
    std::vector<int> seen;
    for (int t = 0; t < step.prefix; ++t) seen.push_back(t);
    for (const int node : step.path(i)) seen.push_back(step.prefix + node);
    for (int h = 0; h < shape.q_heads; ++h) {
      const std::int64_t q_at = (std::int64_t{i} * shape.q_heads + h) * dim;
      std::vector<double> scores;
      double largest = -1e300, total = 0;
      for (const int t : seen) {
        const std::int64_t at = (std::int64_t{t} * shape.kv_heads + h / group) * dim;
        double score = 0;
        for (int d = 0; d < dim; ++d) {
          score += double{values.q.get(q_at + d)} * double{values.k.get(at + d)};
        }
        scores.push_back(score * double{kScale});
        largest = std::max(largest, scores.back());
      }
      std::vector<double> wanted(static_cast<std::size_t>(dim));
      for (std::size_t j = 0; j < seen.size(); ++j) {
        const std::int64_t at = (std::int64_t{seen[j]} * shape.kv_heads + h / group) * dim;
        const double weight = std::exp(scores[j] - largest);
        total += weight;
        for (int d = 0; d < dim; ++d) wanted[d] += weight * double{values.v.get(at + d)};
      }
      for (int d = 0; d < dim; ++d) {
        const double error = std::fabs(double{out.get(q_at + d)} - wanted[d] / total);
        // Values are below 1, weights and the result are rounded to the dtype; scores, up to 100 in
        // size before they are scaled, are sums of up to 256 terms in fp32.
        CHECK(error <= 2 * rounding_of(shape.dtype) + 2e-5);
      }
    }
  }
}

// Every row of the tree gets what its path, decoded token by token, gets: the last token's bits.
void check_one_by_one(const Shape& shape, const Values& values, const Step& step,
                      const Array& out) {
  const std::int64_t width = std::int64_t{shape.q_heads} * shape.head_dim;
  const std::vector<std::uint64_t> self = {1};
  for (int i = 0; i < step.rows(); ++i) {
    std::vector<int> rows;
    for (int t = 0; t < step.prefix; ++t) rows.push_back(t);
    for (const int node : step.path(i)) rows.push_back(step.prefix + node);
    const Array alone = attend(shape, values, rows, {i}, &self);
    CHECK(out.same(i * width, alone, 0, width));
  }
}

void check_step(const Shape& shape, const Step& step, bool one_by_one) {
  const Values values(shape, step, step.prefix + step.rows());
  const Array out = attend(shape, values, step);
  check_against_reference(shape, values, step, out);
  if (one_by_one) check_one_by_one(shape, values, step, out);
}

// Every head size, grouping and dtype, over tile and split edges.
void test_shapes() {
  struct Heads {
    int q, kv;
  };
  const Heads heads[] = {{7, 1}, {6, 3}, {1, 1}, {2, 2}, {20, 1}};
  std::mt19937 rng(7);
  int at = 0;
  for (const DType dtype : kDTypes) {
    for (const int dim : {64, 80, 96, 128, 256}) {
      const Shape shape{dtype, dim, heads[at % 5].q, heads[at % 5].kv, 1 + at % 2};
      cuda_shim::set_order(kOrders[at % 3], static_cast<std::uint64_t>(at));
      const int tile = ptd::cuda::attention_tile(dtype, dim);
      const Step step = random_tree(rng, 2 * tile - 1 + at % 3, 5, 3);
      check_step(shape, step, at % 2 == 0);
      ++at;
    }
  }
}

// Prefix lengths around the edges of tiles and splits, with trees that reach over them.
void test_edges() {
  std::mt19937 rng(11);
  int at = 0;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const Shape shape{dtype, 64, 4, 1, 2};
    const int tile = ptd::cuda::attention_tile(dtype, 64);
    for (const int edge : {0, tile, 2 * tile, 4 * tile}) {
      for (const int off : {-3, -1, 0, 1}) {
        if (edge + off < 0) continue;
        cuda_shim::set_order(kOrders[at % 3], static_cast<std::uint64_t>(at));
        const bool paths = at % 3 == 0 || off == -3;
        check_step(shape, random_tree(rng, edge + off, 6, 2), paths);
        ++at;
      }
    }
  }
}

// A tree that is a chain is the chain; a chain over several tiles and splits is each of its rows.
void test_chains() {
  const Shape shape{DType::kBFloat16, 64, 2, 1, 1};
  cuda_shim::set_order(Order::kRandom, 3);
  const Step masked = chain_of(61, 70, true), plain = chain_of(61, 70, false);
  const Values values(shape, masked, 5);
  const Array out = attend(shape, values, plain);
  CHECK(out.bytes() == attend(shape, values, masked).bytes());
  check_against_reference(shape, values, plain, out);
  // Rows of the step that count as prefix: the tail of a chain by itself.
  std::vector<int> rows, queries;
  for (int t = 0; t < 61 + 70; ++t) rows.push_back(t);
  for (int i = 66; i < 70; ++i) queries.push_back(i);
  const Array tail = attend(shape, values, rows, queries, nullptr, 66);
  CHECK(out.same(66 * 2 * 64, tail, 0, 4 * 2 * 64));
}

// More rows than a block packs, and all four words of a mask.
void test_many_rows() {
  std::mt19937 rng(13);
  for (const int rows : {64, 256}) {
    const Shape shape{DType::kBFloat16, 64, 1, 1, 4};
    cuda_shim::set_order(kOrders[rows % 3], 17);
    check_step(shape, random_tree(rng, 66, rows, rows == 64 ? 1 : 40), false);
  }
}

// Siblings may change places: their rows do, and nothing else changes.
void test_permutation() {
  const Shape shape{DType::kBFloat16, 80, 3, 1, 2};
  cuda_shim::set_order(Order::kForward);
  const Step step{70, {-1, 0, 0, 1, 2, 2, 4}};
  const std::vector<int> moved = {0, 2, 1, 5, 3, 4, 6};  // node -> its new place
  Step permuted{70, std::vector<int>(7)};
  const Values values(shape, step, 3);
  Values others = values;
  const std::int64_t q_width = 3 * 80, kv_width = 80;
  for (int i = 0; i < 7; ++i) {
    permuted.parents[moved[i]] = step.parents[i] < 0 ? -1 : moved[step.parents[i]];
    others.q.copy(moved[i] * q_width, values.q, i * q_width, q_width);
    others.k.copy((70 + moved[i]) * kv_width, values.k, (70 + i) * kv_width, kv_width);
    others.v.copy((70 + moved[i]) * kv_width, values.v, (70 + i) * kv_width, kv_width);
  }
  const Array out = attend(shape, values, step), other = attend(shape, others, permuted);
  for (int i = 0; i < 7; ++i) CHECK(out.same(i * q_width, other, moved[i] * q_width, q_width));
}

// The order of the threads changes no bit: several warps over several tiles of one split.
void test_orders() {
  const Shape shape{DType::kBFloat16, 64, 8, 2, 4};
  std::mt19937 rng(19);
  const Step step = random_tree(rng, 260, 9, 4);
  const Values values(shape, step, 1);
  cuda_shim::set_order(Order::kForward);
  const Array out = attend(shape, values, step);
  cuda_shim::set_order(Order::kReverse);
  CHECK(out.bytes() == attend(shape, values, step).bytes());
  for (std::uint64_t seed = 1; seed < 4; ++seed) {
    cuda_shim::set_order(Order::kRandom, seed);
    CHECK(out.bytes() == attend(shape, values, step).bytes());
  }
}

// Splits follow each other without a gap, each as long as said; a prefix that reaches into the
// longer ones.
void test_splits() {
  const DType dtype = DType::kFloat32;
  const int tile = ptd::cuda::attention_tile(dtype, 64);
  std::int64_t begin = 0;
  for (std::int64_t split = 0; split < 40; ++split) {
    const std::int64_t length = split < 16 ? 3 : 3 << (split / 8 - 1);
    CHECK(ptd::cuda::attention_splits(dtype, 64, 3, begin * tile + 1) == split + 1);
    CHECK(ptd::cuda::attention_splits(dtype, 64, 3, (begin + length) * tile) == split + 1);
    begin += length;
  }
  const Shape shape{dtype, 64, 1, 1, 1};
  for (const int tiles : {16, 17, 18, 34}) {
    cuda_shim::set_order(kOrders[tiles % 3], 23);
    std::mt19937 rng(static_cast<unsigned>(tiles));
    check_step(shape, random_tree(rng, tiles * tile - 2, 4, 2), tiles != 34);
  }
}

// Offsets beyond 2^31 elements: a cache whose second head begins there, of which few pages exist.
void test_wide_offsets() {
  const Shape shape{DType::kBFloat16, 64, 2, 2, 1};
  const Step step = chain_of(66, 2, false);
  const Values values(shape, step, 29);
  cuda_shim::set_order(Order::kForward);
  const Array wanted = attend(shape, values, step);

  constexpr std::int64_t kHeadStride = (std::int64_t{1} << 31) + 64;
  const std::size_t bytes = static_cast<std::size_t>(kHeadStride + 68 * 64) * 2;
  void* caches[2];
  for (int c = 0; c < 2; ++c) {
    caches[c] = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(caches[c] != MAP_FAILED);
    const std::vector<unsigned char>& source = c == 0 ? values.k.bytes() : values.v.bytes();
    for (int t = 0; t < 68; ++t) {
      for (int h = 0; h < 2; ++h) {
        std::memcpy(static_cast<char*>(caches[c]) + 2 * (h * kHeadStride + t * 64),
                    source.data() + 2 * (t * 2 + h) * 64, 2 * 64);
      }
    }
  }
  Array q = values.q, out(shape.dtype, q.size());
  const std::int32_t prefix_len = step.prefix;
  TreeAttentionParams p{};
  p.dtype = shape.dtype;
  p.rows = step.rows();
  p.q_heads = p.kv_heads = 2;
  p.head_dim = 64;
  p.split_tiles = 1;
  p.kv_bound = 68;
  p.kv_head_stride = kHeadStride;
  p.kv_row_stride = 64;
  p.scale = kScale;
  p.q = q.data();
  p.k_cache = caches[0];
  p.v_cache = caches[1];
  p.prefix_len = &prefix_len;
  std::vector<float> workspace(static_cast<std::size_t>(attention_workspace_bytes(p)) / 4, kNaN);
  p.workspace = workspace.data();
  p.out = out.data();
  CHECK(ptd::cuda::tree_attention(p, nullptr) == cudaSuccess);
  CHECK(out.bytes() == wanted.bytes());
  for (void* cache : caches) CHECK(munmap(cache, bytes) == 0);
}

// Scores that overflow to minus infinity, over all of a tile, a split or the first rows, weigh
// nothing; and a row of the mask without a bit harms no other.
void test_nothing_seen() {
  const Shape shape{DType::kFloat32, 64, 1, 1, 1};
  const int tile = ptd::cuda::attention_tile(shape.dtype, 64), last = 4 * tile + 1;
  cuda_shim::set_order(Order::kForward);
  for (const int first : {0, tile, 3 * tile, 4 * tile}) {
    const Step step = chain_of(4 * tile, 2, true);
    Values values(shape, step, first);
    values.q.fill(1e20f);
    values.k.fill(-1e20f);
    const auto seen = [&](int t) { return t < first || t >= first + tile; };
    for (int t = 0; t <= last; ++t) {
      for (int d = 0; d < 64 && seen(t); ++d) values.k.set(t * 64 + d, 1e-20f);
    }
    const Array out = attend(shape, values, step);
    for (int d = 0; d < 64; ++d) {
      double wanted = 0;
      int count = 0;
      for (int t = 0; t <= last; ++t) {
        if (seen(t)) wanted += double{values.v.get(t * 64 + d)}, ++count;
      }
      CHECK(std::fabs(double{out.get(64 + d)} - wanted / count) < 1e-5);
    }
  }
  for (const int prefix : {0, 5, 2 * tile}) {
    const Values values(shape, chain_of(prefix, 3, true), 7);
    std::vector<int> rows;
    for (int t = 0; t < prefix + 3; ++t) rows.push_back(t);
    std::vector<std::uint64_t> mask = {1, 3, 7};
    const Array out = attend(shape, values, rows, {0, 1, 2}, &mask);
    mask[1] = 0;
    const Array other = attend(shape, values, rows, {0, 1, 2}, &mask);
    CHECK(out.same(0, other, 0, 64) && out.same(128, other, 128, 64));
  }
}

// What a launcher refuses, one fault after the other in parameters that are right.
void test_refusals() {
  alignas(16) static float room[64 * 66];
  const std::int32_t prefix_len = 0;
  const std::uint64_t mask = 1;
  TreeAttentionParams good{};
  good.dtype = DType::kFloat16;
  good.rows = good.q_heads = good.kv_heads = good.split_tiles = 1;
  good.head_dim = 64;
  good.kv_bound = 8;
  good.kv_head_stride = good.kv_row_stride = 64;
  good.scale = 1;
  good.q = good.k_cache = good.v_cache = room;
  good.mask = &mask;
  good.prefix_len = &prefix_len;
  good.workspace = room + 1024;
  good.out = room + 2048;
  CHECK(ptd::cuda::tree_attention(good, nullptr) == cudaSuccess);
  const auto refused = [&](auto change) {
    TreeAttentionParams p = good;
    change(p);
    return ptd::cuda::tree_attention(p, nullptr) == cudaErrorInvalidValue;
  };
  using Params = TreeAttentionParams;
  CHECK(refused([](Params& p) { p = Params{}; }));
  CHECK(refused([](Params& p) { p.dtype = DType{3}; }));
  CHECK(refused([](Params& p) { p.head_dim = 72; }));
  CHECK(refused([](Params& p) { p.q_heads = 3, p.kv_heads = 2; }));
  CHECK(refused([](Params& p) { p.kv_heads = 0; }));
  CHECK(refused([](Params& p) { p.rows = -1; }));
  CHECK(refused([](Params& p) { p.rows = 257, p.kv_bound = 512; }));
  CHECK(refused([](Params& p) { p.kv_bound = 0; }));
  CHECK(refused([](Params& p) { p.split_tiles = 0; }));
  CHECK(refused([](Params& p) { p.prefix_offset = -1; }));
  CHECK(refused([](Params& p) { p.kv_row_stride = 68; }));
  CHECK(refused([](Params& p) { p.kv_head_stride = 60; }));
  CHECK(refused([](Params& p) { p.q = nullptr; }));
  CHECK(refused([](Params& p) { p.k_cache = nullptr; }));
  CHECK(refused([](Params& p) { p.v_cache = static_cast<const char*>(p.v_cache) + 8; }));
  CHECK(refused([](Params& p) { p.prefix_len = nullptr; }));
  CHECK(refused([](Params& p) { p.workspace = nullptr; }));
  CHECK(refused([](Params& p) { p.out = nullptr; }));
  TreeAttentionParams none = good;
  none.rows = 0;
  none.q = nullptr;
  CHECK(ptd::cuda::tree_attention(none, nullptr) == cudaSuccess);
  CHECK(attention_workspace_bytes(Params{}) == 0 && attention_workspace_bytes(none) == 0);
  CHECK(ptd::cuda::attention_splits(DType::kFloat32, 64, 0, 100) == 0);
}

void timed(const char* name, void (*test)()) {
  const auto start = std::chrono::steady_clock::now();
  test();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  std::printf("%s: %.1f s\n", name, passed.count());
}

}  // namespace

// With an argument: without the tests of head sizes that the mutants of test_cuda_mutants.py are
// not compiled for.
int main(int argc, char**) {
  timed("edges", test_edges);
  timed("orders", test_orders);
  timed("chains", test_chains);
  timed("permutation", test_permutation);
  timed("many rows", test_many_rows);
  if (argc == 1) timed("shapes", test_shapes);
  timed("splits", test_splits);
  timed("wide offsets", test_wide_offsets);
  timed("nothing seen", test_nothing_seen);
  timed("refusals", test_refusals);
  return 0;
}
