// The Python module ptd_engine._cuda: launchers over addresses and a stream.
//
// Nothing is checked here but what the launchers check; ptd_engine/kernels/cuda_ops.py knows
// tensors. Importing it touches no driver.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "ptd/cuda/kv_commit.h"
#include "ptd/cuda/pointwise.h"
#include "ptd/cuda/rope_kv_write.h"
#include "ptd/cuda/select.h"
#include "ptd/cuda/tree_attention.h"

namespace py = pybind11;

namespace {

using namespace ptd::cuda;
using Address = std::uintptr_t;

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// Bytes of shared memory that one block may have.
int shared_memory(int device) {
  int bytes = 0;
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "shared_memory");
  return bytes;
}

int compute_capability(int device) {
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "device");
  return 10 * major + minor;
}

std::int64_t workspace_bytes(int dtype, int rows, int q_heads, int head_dim, int split_tiles,
                             std::int64_t kv_bound) {
  TreeAttentionParams p{};
  p.dtype = static_cast<DType>(dtype);
  p.rows = rows;
  p.q_heads = q_heads;
  p.head_dim = head_dim;
  p.split_tiles = split_tiles;
  p.kv_bound = kv_bound;
  return attention_workspace_bytes(p);
}

void attend(int dtype, int rows, int q_heads, int kv_heads, int head_dim, int split_tiles,
            std::int64_t kv_bound, std::int64_t kv_head_stride, std::int64_t kv_row_stride,
            float scale, Address q, Address k_cache, Address v_cache, Address mask,
            Address prefix_len, std::int64_t prefix_offset, Address workspace, Address out,
            Address stream) {
  TreeAttentionParams p{};
  p.dtype = static_cast<DType>(dtype);
  p.rows = rows;
  p.q_heads = q_heads;
  p.kv_heads = kv_heads;
  p.head_dim = head_dim;
  p.split_tiles = split_tiles;
  p.kv_bound = kv_bound;
  p.kv_head_stride = kv_head_stride;
  p.kv_row_stride = kv_row_stride;
  p.scale = scale;
  p.q = at<void>(q);
  p.k_cache = at<void>(k_cache);
  p.v_cache = at<void>(v_cache);
  p.mask = at<std::uint64_t>(mask);
  p.prefix_len = at<std::int32_t>(prefix_len);
  p.prefix_offset = prefix_offset;
  p.workspace = at<float>(workspace);
  p.out = at<void>(out);
  check(tree_attention(p, at<CUstream_st>(stream)), "tree_attention");
}

void rotate_and_write(int dtype, int rows, int q_heads, int kv_heads, int head_dim, float eps,
                      std::int64_t kv_head_stride, std::int64_t kv_row_stride, Address qkv,
                      Address q_norm, Address k_norm, Address cos_sin, Address positions,
                      Address prefix_len, Address k_cache, Address v_cache, Address q_out,
                      Address stream) {
  RopeKVWriteParams p{};
  p.dtype = static_cast<DType>(dtype);
  p.rows = rows;
  p.q_heads = q_heads;
  p.kv_heads = kv_heads;
  p.head_dim = head_dim;
  p.eps = eps;
  p.kv_head_stride = kv_head_stride;
  p.kv_row_stride = kv_row_stride;
  p.qkv = at<void>(qkv);
  p.q_norm = at<void>(q_norm);
  p.k_norm = at<void>(k_norm);
  p.cos_sin = at<float>(cos_sin);
  p.positions = at<std::int32_t>(positions);
  p.prefix_len = at<std::int32_t>(prefix_len);
  p.k_cache = at<void>(k_cache);
  p.v_cache = at<void>(v_cache);
  p.q_out = at<void>(q_out);
  check(rope_kv_write(p, at<CUstream_st>(stream)), "rope_kv_write");
}

void commit(int element_size, int layers, int kv_heads, int head_dim, int max_commit,
            std::int64_t layer_stride, std::int64_t head_stride, std::int64_t row_stride,
            Address k_cache, Address v_cache, Address commit_src, Address prefix_len,
            Address n_commit, Address stream) {
  KVCommitParams p{};
  p.element_size = element_size;
  p.layers = layers;
  p.kv_heads = kv_heads;
  p.head_dim = head_dim;
  p.max_commit = max_commit;
  p.layer_stride = layer_stride;
  p.head_stride = head_stride;
  p.row_stride = row_stride;
  p.k_cache = at<void>(k_cache);
  p.v_cache = at<void>(v_cache);
  p.commit_src = at<std::int32_t>(commit_src);
  p.prefix_len = at<std::int32_t>(prefix_len);
  p.n_commit = at<std::int32_t>(n_commit);
  check(kv_commit(p, at<CUstream_st>(stream)), "kv_commit");
}

void choose(int dtype, int mode, int rows, int vocab, int n_verify, int successors,
            std::int64_t logits_stride, std::int64_t next_stride, Address logits,
            Address temperature, Address uniform, Address sampling, Address next, Address stream) {
  SelectParams p{};
  p.dtype = static_cast<DType>(dtype);
  p.mode = static_cast<SelectMode>(mode);
  p.rows = rows;
  p.vocab = vocab;
  p.n_verify = n_verify;
  p.successors = successors;
  p.logits_stride = logits_stride;
  p.next_stride = next_stride;
  p.logits = at<void>(logits);
  p.temperature = at<float>(temperature);
  p.uniform = at<float>(uniform);
  p.sampling = at<float>(sampling);
  p.next = at<std::int32_t>(next);
  check(ptd::cuda::select(p, at<CUstream_st>(stream)), "select");
}

void add_and_normalise(int dtype, int rows, int hidden, float eps, Address x, Address residual,
                       Address weight, Address out, Address stream) {
  const AddRMSNormParams p{
      static_cast<DType>(dtype), rows,         hidden, eps, at<void>(x), at<void>(residual),
      at<void>(weight),          at<void>(out)};
  check(add_rms_norm(p, at<CUstream_st>(stream)), "add_rms_norm");
}

void activate(int dtype, int rows, int inner, Address gate_up, Address out, Address stream) {
  const SiluMulParams p{static_cast<DType>(dtype), rows, inner, at<void>(gate_up), at<void>(out)};
  check(silu_mul(p, at<CUstream_st>(stream)), "silu_mul");
}

}  // namespace

PYBIND11_MODULE(_cuda, m) {
  m.doc() = "CUDA kernels by address; see csrc/include/ptd/cuda.";
  m.attr("MAX_TREE_ROWS") = kMaxTreeRows;
  m.attr("MAX_SUCCESSORS") = kMaxSuccessors;
  m.attr("MAX_VOCAB") = kMaxVocab;
  m.def("device_count", &device_count);
  m.def("compute_capability", &compute_capability, py::arg("device"));
  m.def("shared_memory", &shared_memory, py::arg("device"));
  m.def(
      "attention_tile", [](int dtype, int dim) { return attention_tile(DType{dtype}, dim); },
      py::arg("dtype"), py::arg("head_dim"));
  m.def(
      "attention_shared",
      [](int dtype, int dim) {
        const AttentionShared bytes = attention_shared(DType{dtype}, dim);
        return py::make_tuple(bytes.prefix, bytes.tree);
      },
      py::arg("dtype"), py::arg("head_dim"));
  m.def("attention_workspace_bytes", &workspace_bytes);
  m.def("tree_attention", &attend);
  m.def("rope_kv_write", &rotate_and_write);
  m.def("kv_commit", &commit);
  m.def("select", &choose);
  m.def("add_rms_norm", &add_and_normalise);
  m.def("silu_mul", &activate);
}
