// The CPU kernels for Python: tensors come as addresses, so nothing here knows their library.
#include <pybind11/functional.h>

#include "bindings.h"
#include "ptd/cpu/executor.h"
#include "ptd/cpu/packing.h"

namespace py = pybind11;

namespace ptd {
namespace {

using Address = std::uintptr_t;

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

cpu::DType dtype_of(bool is_bf16) { return is_bf16 ? cpu::DType::kBF16 : cpu::DType::kF32; }

cpu::WeightFormat format_of(const std::string& name) {
  if (name == "float32") return cpu::WeightFormat::kF32;
  if (name == "bfloat16") return cpu::WeightFormat::kBF16;
  if (name == "int8") return cpu::WeightFormat::kInt8;
  if (name == "int4") return cpu::WeightFormat::kInt4;
  throw InvalidArgument("format='" + name +
                        "' is not valid: allowed are float32, bfloat16, int8 and int4.");
}

// A packed matrix; the memory stays the caller's.
struct CpuWeight {
  cpu::WeightShape shape;
  cpu::LinearWeight view;
};

CpuWeight view_weight(const std::string& format, std::int64_t out, std::int64_t in, bool bias,
                      Address block) {
  const cpu::WeightShape shape{format_of(format), out, in, bias};
  return {shape, cpu::packed_view(shape, at<const unsigned char>(block))};
}

void pack(const CpuWeight& weight, bool source_is_bf16, Address source, Address bias) {
  // The block belongs to the caller, who wants it written.
  auto* block = const_cast<unsigned char*>(static_cast<const unsigned char*>(weight.view.panels));
  cpu::pack_weight(weight.shape, dtype_of(source_is_bf16), at<const void>(source),
                   at<const void>(bias), block);
}

// Records what `call` does. In one piece, so that whatever ends the call, an interrupt from the
// keyboard between two lines of Python included, the executor does not go on recording.
std::shared_ptr<cpu::Program> record(cpu::Executor& executor, const py::function& call) {
  {
    const py::gil_scoped_release unlocked;
    executor.begin_recording();
  }
  try {
    call();
  } catch (...) {
    executor.end_recording();
    throw;
  }
  return executor.end_recording();
}

void linear(cpu::Executor& executor, bool is_bf16, int rows, Address x, const CpuWeight& weight,
            Address out, bool out_f32) {
  cpu::LinearArgs a{};
  a.dtype = dtype_of(is_bf16);
  a.rows = rows;
  a.x = at<const void>(x);
  a.weight = weight.view;
  a.out = at<void>(out);
  a.out_f32 = out_f32;
  executor.linear(a);
}

void head(cpu::Executor& executor, bool is_bf16, int rows, Address x, const CpuWeight& weight,
          int logit_rows, Address logits, std::int64_t limit, Address next,
          std::int64_t next_stride) {
  cpu::HeadArgs a{};
  a.dtype = dtype_of(is_bf16);
  a.rows = rows;
  a.logit_rows = logit_rows;
  a.x = at<const void>(x);
  a.weight = weight.view;
  a.logits = at<float>(logits);
  a.limit = limit;
  a.next = at<std::int32_t>(next);
  a.next_stride = next_stride;
  executor.head(a);
}

void embed(cpu::Executor& executor, bool is_bf16, int rows, Address ids, const CpuWeight& table,
           Address out) {
  cpu::EmbedArgs a{};
  a.token_ids = at<const std::int32_t>(ids);
  a.table = table.view;
  a.out = at<void>(out);
  a.rows = rows;
  executor.embed(a, dtype_of(is_bf16));
}

void add_rms_norm(cpu::Executor& executor, bool is_bf16, int rows, int hidden, Address x,
                  Address residual, Address weight, float eps, Address out) {
  cpu::AddRmsNormArgs a{};
  a.dtype = dtype_of(is_bf16);
  a.rows = rows;
  a.hidden = hidden;
  a.x = at<const void>(x);
  a.residual = at<void>(residual);
  a.weight = at<const void>(weight);
  a.eps = eps;
  a.out = at<void>(out);
  executor.add_rms_norm(a);
}

void rope_kv_write(cpu::Executor& executor, bool is_bf16, int rows, int q_heads, int kv_heads,
                   int head_dim, Address qkv, Address q_norm, Address k_norm, float eps,
                   Address cos_sin, Address positions, Address prefix_len, Address k_cache,
                   Address v_cache, std::int64_t kv_head_stride, Address q_out) {
  cpu::RopeKvArgs a{};
  a.dtype = dtype_of(is_bf16);
  a.rows = rows;
  a.q_heads = q_heads;
  a.kv_heads = kv_heads;
  a.head_dim = head_dim;
  a.qkv = at<const void>(qkv);
  a.q_norm = at<const void>(q_norm);
  a.k_norm = at<const void>(k_norm);
  a.eps = eps;
  a.cos_sin = at<const float>(cos_sin);
  a.positions = at<const std::int32_t>(positions);
  a.prefix_len = at<const std::int32_t>(prefix_len);
  a.k_cache = at<void>(k_cache);
  a.v_cache = at<void>(v_cache);
  a.kv_head_stride = kv_head_stride;
  a.q_out = at<void>(q_out);
  executor.rope_kv_write(a);
}

void attention(cpu::Executor& executor, bool is_bf16, int rows, int q_heads, int kv_heads,
               int head_dim, Address q, Address k_cache, Address v_cache,
               std::int64_t kv_head_stride, Address mask, Address prefix_len, float scale,
               int max_keys, Address out) {
  cpu::AttentionArgs a{};
  a.dtype = dtype_of(is_bf16);
  a.rows = rows;
  a.q_heads = q_heads;
  a.kv_heads = kv_heads;
  a.head_dim = head_dim;
  a.q = at<const void>(q);
  a.k_cache = at<const void>(k_cache);
  a.v_cache = at<const void>(v_cache);
  a.kv_head_stride = kv_head_stride;
  a.mask = at<const std::uint64_t>(mask);
  a.prefix_len = at<const std::int32_t>(prefix_len);
  a.scale = scale;
  a.max_keys = max_keys;
  a.out = at<void>(out);
  executor.attention(a);
}

void silu_mul(cpu::Executor& executor, bool is_bf16, int rows, int inner, Address gate_up,
              Address out) {
  cpu::SiluMulArgs a{};
  a.dtype = dtype_of(is_bf16);
  a.rows = rows;
  a.inner = inner;
  a.gate_up = at<const void>(gate_up);
  a.out = at<void>(out);
  executor.silu_mul(a);
}

void kv_commit(cpu::Executor& executor, bool is_bf16, int layers, int kv_heads, int head_dim,
               std::int64_t capacity, Address k_cache, Address v_cache, Address commit_src,
               Address prefix_len, int n_commit) {
  cpu::KvCommitArgs a{};
  a.dtype = dtype_of(is_bf16);
  a.layers = layers;
  a.kv_heads = kv_heads;
  a.head_dim = head_dim;
  a.k_cache = at<void>(k_cache);
  a.v_cache = at<void>(v_cache);
  a.capacity = capacity;
  a.commit_src = at<const std::int32_t>(commit_src);
  a.prefix_len = at<const std::int32_t>(prefix_len);
  a.n_commit = n_commit;
  executor.kv_commit(a);
}

void select(cpu::Executor& executor, int rows, int vocab, Address logits,
            std::int64_t logits_stride, Address temperature, Address uniform, Address sampling,
            bool filter, int successors, Address next, std::int64_t next_stride) {
  cpu::SelectArgs a{};
  a.rows = rows;
  a.vocab = vocab;
  a.logits = at<const float>(logits);
  a.logits_stride = logits_stride;
  a.temperature = at<const float>(temperature);
  a.uniform = at<const float>(uniform);
  a.sampling = at<const float>(sampling);
  a.filter = filter;
  a.next = at<std::int32_t>(next);
  a.next_stride = next_stride;
  a.successors = successors;
  executor.select(a);
}

}  // namespace

void bind_cpu(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> unlocked;
  m.def("cpu_isas", [] {
    py::dict reasons;
    for (int i = 0; i < cpu::kNumIsas; ++i) {
      const auto isa = static_cast<cpu::Isa>(i);
      reasons[cpu::isa_name(isa)] = cpu::isa_unavailable(isa);
    }
    return reasons;
  });
  m.def("cpu_best_isa", [] { return std::string(cpu::isa_name(cpu::best_isa())); });

  m.def("cpu_large_pages", [](Address memory, std::int64_t bytes) {
    cpu::ask_for_large_pages(at<void>(memory), bytes);
  });

  py::class_<CpuWeight>(m, "CpuWeight")
      .def(py::init(&view_weight), py::arg("format"), py::arg("out_features"),
           py::arg("in_features"), py::arg("bias"), py::arg("block"))
      .def_static(
          "nbytes",
          [](const std::string& format, std::int64_t out, std::int64_t in, bool bias) {
            return cpu::packed_bytes({format_of(format), out, in, bias});
          },
          py::arg("format"), py::arg("out_features"), py::arg("in_features"), py::arg("bias"))
      .def("pack", &pack, unlocked, py::arg("source_is_bf16"), py::arg("source"), py::arg("bias"));

  py::class_<cpu::Program, std::shared_ptr<cpu::Program>>(m, "CpuProgram")
      .def("__len__", [](const cpu::Program& p) { return p.stages().size(); });

  py::class_<cpu::Executor>(m, "CpuExecutor")
      .def(py::init([](const std::string& isa, int threads) {
             return std::make_unique<cpu::Executor>(cpu::isa_by_name(isa), threads);
           }),
           py::arg("isa"), py::arg("num_threads"))
      .def_property_readonly(
          "isa", [](const cpu::Executor& e) { return std::string(cpu::isa_name(e.isa())); })
      .def_property_readonly("num_threads", &cpu::Executor::threads)
      .def("record", &record)
      .def("run", &cpu::Executor::run, unlocked)
      .def("linear", &linear, unlocked)
      .def("head", &head, unlocked)
      .def("embed", &embed, unlocked)
      .def("add_rms_norm", &add_rms_norm, unlocked)
      .def("rope_kv_write", &rope_kv_write, unlocked)
      .def("attention", &attention, unlocked)
      .def("silu_mul", &silu_mul, unlocked)
      .def("kv_commit", &kv_commit, unlocked)
      .def("select", &select, unlocked);
}

}  // namespace ptd
