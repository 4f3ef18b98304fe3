// The small CUDA kernels on the CPU: rotation and KV write, KV commit, RMS norm, activation.
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "check.h"
#include "cuda_support.h"
#include "ptd/cuda/kv_commit.h"
#include "ptd/cuda/pointwise.h"
#include "ptd/cuda/rope_kv_write.h"

namespace {

using namespace cuda_test;

void check_rope(DType dtype, int rows, int q_heads, int kv_heads, int dim, bool normed) {
  std::mt19937 rng(static_cast<unsigned>(dim + rows));
  const int heads = q_heads + 2 * kv_heads, half = dim / 2, prefix = 9,
            capacity = prefix + rows + 2;
  const std::int64_t row_stride = dim + 4, head_stride = capacity * row_stride + 8;
  Array qkv(dtype, std::int64_t{rows} * heads * dim), q_norm(dtype, dim), k_norm(dtype, dim);
  Array k_cache(dtype, kv_heads * head_stride), v_cache(dtype, kv_heads * head_stride);
  Array q_out(dtype, std::int64_t{rows} * q_heads * dim);
  qkv.fill_random(rng, 3);
  q_norm.fill_random(rng);
  k_norm.fill_random(rng);
  k_cache.fill(kNaN);
  v_cache.fill(kNaN);
  std::vector<float> cos_sin(static_cast<std::size_t>(40 * dim));
  for (int p = 0; p < 40; ++p) {
    for (int d = 0; d < half; ++d) {
      cos_sin[p * dim + d] =
          std::cos(static_cast<float>(p) * std::pow(0.9f, static_cast<float>(d)));
      cos_sin[p * dim + half + d] =
          std::sin(static_cast<float>(p) * std::pow(0.9f, static_cast<float>(d)));
    }
  }
  std::vector<std::int32_t> positions;
  for (int i = 0; i < rows; ++i) positions.push_back((7 * i + 3) % 40);
  const std::int32_t prefix_len = prefix;
  ptd::cuda::RopeKVWriteParams p{};
  p.dtype = dtype;
  p.rows = rows;
  p.q_heads = q_heads;
  p.kv_heads = kv_heads;
  p.head_dim = dim;
  p.eps = 1e-5f;
  p.kv_head_stride = head_stride;
  p.kv_row_stride = row_stride;
  p.qkv = qkv.data();
  p.q_norm = normed ? q_norm.data() : nullptr;
  p.k_norm = normed ? k_norm.data() : nullptr;
  p.cos_sin = cos_sin.data();
  p.positions = positions.data();
  p.prefix_len = &prefix_len;
  p.k_cache = k_cache.data();
  p.v_cache = v_cache.data();
  p.q_out = q_out.data();
  CHECK(ptd::cuda::rope_kv_write(p, nullptr) == cudaSuccess);

  const double tolerance = 4 * (rounding_of(dtype) + 1e-6) * 3;
  for (int i = 0; i < rows; ++i) {
    for (int h = 0; h < heads; ++h) {
      std::vector<double> x;
      double square = 0;
      for (int d = 0; d < dim; ++d) {
        x.push_back(double{qkv.get((std::int64_t{i} * heads + h) * dim + d)});
        square += x[d] * x[d];
      }
      const bool query = h < q_heads, value = h >= q_heads + kv_heads;
      const Array& norm = query ? q_norm : k_norm;
      for (int d = 0; d < dim && normed && !value; ++d) {
        x[d] *= double{norm.get(d)} / std::sqrt(square / dim + 1e-5);
      }
      for (int d = 0; d < dim; ++d) {
        const double c = double{cos_sin[positions[i] * dim + d % half]};
        const double s = double{cos_sin[positions[i] * dim + half + d % half]};
        const double wanted = value      ? x[d]
                              : d < half ? x[d] * c - x[d + half] * s
                                         : x[d] * c + x[d - half] * s;
        const std::int64_t at = (h - q_heads) % kv_heads * head_stride + (prefix + i) * row_stride;
        const float got = query   ? q_out.get((std::int64_t{i} * q_heads + h) * dim + d)
                          : value ? v_cache.get(at + d)
                                  : k_cache.get(at + d);
        CHECK(std::fabs(double{got} - wanted) <= (value ? 0 : tolerance));
      }
    }
  }
  // No other row of the cache is touched.
  for (int h = 0; h < kv_heads; ++h) {
    for (const int t : {0, prefix - 1, prefix + rows, capacity - 1}) {
      for (int d = 0; d < dim; ++d) {
        CHECK(std::isnan(k_cache.get(h * head_stride + t * row_stride + d)));
        CHECK(std::isnan(v_cache.get(h * head_stride + t * row_stride + d)));
      }
    }
  }
}

void test_rope() {
  int at = 0;
  for (const DType dtype : kDTypes) {
    for (const int dim : {64, 80, 96, 128, 256}) {
      cuda_shim::set_order(kOrders[at % 3]);
      check_rope(dtype, 1 + at % 4, 3 + at % 5, 1 + at % 3, dim, at % 2 == 0);
      ++at;
    }
  }
}

void check_commit(int n_commit, const std::vector<std::int32_t>& sources, int prefix_before) {
  constexpr int kLayers = 2, kHeads = 3, kDim = 24, kCapacity = 40;
  const std::int64_t row_stride = 32, head_stride = kCapacity * row_stride;
  const std::int64_t layer_stride = kHeads * head_stride + 64;
  Array k(DType::kFloat16, kLayers * layer_stride), v(DType::kFloat16, k.size());
  std::mt19937 rng(1);
  k.fill_random(rng);
  v.fill_random(rng);
  const Array k_before = k, v_before = v;
  const std::int32_t n = n_commit, prefix_len = prefix_before + n_commit;
  ptd::cuda::KVCommitParams p{};
  p.element_size = 2;
  p.layers = kLayers;
  p.kv_heads = kHeads;
  p.head_dim = kDim;
  p.max_commit = static_cast<int>(sources.size());
  p.layer_stride = layer_stride;
  p.head_stride = head_stride;
  p.row_stride = row_stride;
  p.k_cache = k.data();
  p.v_cache = v.data();
  p.commit_src = sources.data();
  p.prefix_len = &prefix_len;
  p.n_commit = &n;
  CHECK(ptd::cuda::kv_commit(p, nullptr) == cudaSuccess);
  Array k_wanted = k_before, v_wanted = v_before;
  for (int l = 0; l < kLayers; ++l) {
    for (int h = 0; h < kHeads; ++h) {
      const std::int64_t head = l * layer_stride + h * head_stride;
      for (int i = 0; i < n_commit; ++i) {
        const std::int64_t to = head + (prefix_before + i) * row_stride;
        k_wanted.copy(to, k_before, head + sources[i] * row_stride, kDim);
        v_wanted.copy(to, v_before, head + sources[i] * row_stride, kDim);
      }
    }
  }
  CHECK(k.bytes() == k_wanted.bytes() && v.bytes() == v_wanted.bytes());
}

void test_commit() {
  for (const Order order : kOrders) {
    cuda_shim::set_order(order);
    check_commit(0, {10, 11}, 10);
    check_commit(2, {10, 11, 12}, 10);      // in place already
    check_commit(3, {11, 12, 13, 13}, 10);  // ranges that overlap
    check_commit(7, {10, 12, 13, 17, 19, 30, 39, 17}, 10);
    check_commit(9, {1, 3, 4, 5, 6, 7, 8, 9, 10}, 0);
  }
}

void test_norm() {
  std::mt19937 rng(2);
  for (const DType dtype : kDTypes) {
    for (const int hidden : {1, 64, 250, 1000}) {
      for (const bool adds : {false, true}) {
        const int rows = 3;
        Array x(dtype, std::int64_t{rows} * hidden), residual = x, weight(dtype, hidden), out = x;
        x.fill_random(rng);
        residual.fill_random(rng, 2);
        weight.fill_random(rng);
        const Array before = residual;
        cuda_shim::set_order(kOrders[hidden % 3]);
        const ptd::cuda::AddRMSNormParams p{
            dtype,           rows,          hidden,    1e-6f, adds ? x.data() : nullptr,
            residual.data(), weight.data(), out.data()};
        CHECK(ptd::cuda::add_rms_norm(p, nullptr) == cudaSuccess);
        for (int i = 0; i < rows; ++i) {
          double square = 0;
          for (int d = 0; d < hidden; ++d) {
            const int at = i * hidden + d;
            const float sum = before.get(at) + (adds ? x.get(at) : 0.0f);
            CHECK(residual.get(at) == x.rounded(sum));
            square += double{residual.get(at)} * double{residual.get(at)};
          }
          for (int d = 0; d < hidden; ++d) {
            const double wanted = double{residual.get(i * hidden + d)} /
                                  std::sqrt(square / hidden + 1e-6) * double{weight.get(d)};
            const double error = std::fabs(double{out.get(i * hidden + d)} - wanted);
            CHECK(error <= 4 * (rounding_of(dtype) + 1e-6) * std::max(1.0, std::fabs(wanted)));
          }
        }
      }
    }
  }
}

void test_silu() {
  std::mt19937 rng(3);
  for (const DType dtype : kDTypes) {
    const int rows = 2, inner = 300;
    Array gate_up(dtype, 2 * rows * inner), out(dtype, rows * inner);
    gate_up.fill_random(rng, 6);
    gate_up.set(0, -100);
    gate_up.set(1, 100);
    const ptd::cuda::SiluMulParams p{dtype, rows, inner, gate_up.data(), out.data()};
    CHECK(ptd::cuda::silu_mul(p, nullptr) == cudaSuccess);
    for (int i = 0; i < rows; ++i) {
      for (int d = 0; d < inner; ++d) {
        const double g = double{gate_up.get(2 * i * inner + d)};
        const double wanted = g / (1 + std::exp(-g)) * double{gate_up.get((2 * i + 1) * inner + d)};
        const double error = std::fabs(double{out.get(i * inner + d)} - wanted);
        CHECK(error <= 2 * (rounding_of(dtype) + 1e-6) * std::max(1.0, std::fabs(wanted)));
      }
    }
  }
}

// Without rows there is nothing to do; parameters that nobody set are refused.
void test_refusals() {
  constexpr auto kInvalid = cudaErrorInvalidValue;
  ptd::cuda::AddRMSNormParams norm{};
  ptd::cuda::SiluMulParams silu{};
  ptd::cuda::RopeKVWriteParams rope{};
  ptd::cuda::KVCommitParams commit{};
  CHECK(ptd::cuda::add_rms_norm(norm, nullptr) == kInvalid);
  CHECK(ptd::cuda::silu_mul(silu, nullptr) == kInvalid);
  CHECK(ptd::cuda::rope_kv_write(rope, nullptr) == kInvalid);
  CHECK(ptd::cuda::kv_commit(commit, nullptr) == kInvalid);
  norm.hidden = silu.inner = rope.q_heads = rope.kv_heads = commit.layers = commit.kv_heads = 1;
  rope.head_dim = commit.head_dim = 64;
  commit.element_size = 2;
  CHECK(ptd::cuda::add_rms_norm(norm, nullptr) == cudaSuccess);
  CHECK(ptd::cuda::silu_mul(silu, nullptr) == cudaSuccess);
  CHECK(ptd::cuda::rope_kv_write(rope, nullptr) == cudaSuccess);
  CHECK(ptd::cuda::kv_commit(commit, nullptr) == cudaSuccess);
  norm.rows = silu.rows = rope.rows = commit.max_commit = 1;  // and null pointers
  CHECK(ptd::cuda::add_rms_norm(norm, nullptr) == kInvalid);
  CHECK(ptd::cuda::silu_mul(silu, nullptr) == kInvalid);
  CHECK(ptd::cuda::rope_kv_write(rope, nullptr) == kInvalid);
  CHECK(ptd::cuda::kv_commit(commit, nullptr) == kInvalid);
  alignas(16) unsigned char cache[256];
  const std::int32_t one = 1;
  commit.k_cache = commit.v_cache = cache;
  commit.commit_src = commit.prefix_len = commit.n_commit = &one;
  commit.row_stride = 64;
  CHECK(ptd::cuda::kv_commit(commit, nullptr) == cudaSuccess);
  commit.row_stride = 60;
  CHECK(ptd::cuda::kv_commit(commit, nullptr) == kInvalid);
  commit.row_stride = 64;
  commit.head_dim = 60;
  CHECK(ptd::cuda::kv_commit(commit, nullptr) == kInvalid);
}

}  // namespace

int main() {
  test_rope();
  test_commit();
  test_norm();
  test_silu();
  test_refusals();
  return 0;
}
