#include "ptd/session.h"

#include <pybind11/numpy.h>

#include <memory>

#include "bindings.h"

namespace py = pybind11;

namespace ptd {
namespace {

template <class T>
std::vector<std::remove_const_t<T>> to_vector(Span<T> values) {
  return {values.begin(), values.end()};
}

// A StepOutcome for Python, valid as long as Python keeps it.
struct OwnedOutcome {
  explicit OwnedOutcome(const StepOutcome& o)
      : tree(*o.tree),
        outputs({static_cast<py::ssize_t>(o.tree->size()), static_cast<py::ssize_t>(o.stride)}),
        accepted(to_vector(o.accepted)),
        new_tokens(to_vector(o.new_tokens)) {
    std::copy_n(o.outputs.begin(), outputs.size(), outputs.mutable_data());
  }
  TreeBuilder tree;
  py::array_t<TokenId> outputs;
  std::vector<NodeId> accepted;
  std::vector<TokenId> new_tokens;
};

// Lets Python subclass Drafter (research): the GIL is taken for the call only.
class PyDrafter : public Drafter, public py::trampoline_self_life_support {
 public:
  DrafterNeeds needs() const override { PYBIND11_OVERRIDE_PURE(DrafterNeeds, Drafter, needs); }
  void begin(Span<const TokenId> prompt) override {
    py::gil_scoped_acquire gil;
    override("begin")(std::vector<TokenId>(prompt.begin(), prompt.end()));
  }
  // Python may keep what it is handed, so it gets copies that it owns; the tree's is read back.
  void propose(Span<const TokenId> committed, TreeBuilder& tree) override {
    py::gil_scoped_acquire gil;
    const auto handed = std::make_shared<TreeBuilder>(tree);
    override("propose")(std::vector<TokenId>(committed.begin(), committed.end()), handed);
    tree = *handed;
  }
  void observe(const StepOutcome& outcome) override {
    py::gil_scoped_acquire gil;
    override("observe")(OwnedOutcome(outcome));
  }
  void observe_prompt(int first, Span<const TokenId> outputs, int stride) override {
    py::gil_scoped_acquire gil;
    const py::function f = py::get_override(static_cast<const Drafter*>(this), "observe_prompt");
    if (!f) return;
    py::array_t<TokenId> copy(
        {static_cast<py::ssize_t>(outputs.size()) / stride, static_cast<py::ssize_t>(stride)});
    std::copy_n(outputs.begin(), copy.size(), copy.mutable_data());
    f(first, copy);
  }
  void set_step_cost(Span<const int> rows, Span<const double> seconds,
                     Span<const double> seconds_per_token) override {
    py::gil_scoped_acquire gil;
    const py::function f = py::get_override(static_cast<const Drafter*>(this), "set_step_cost");
    if (f) f(to_vector(rows), to_vector(seconds), to_vector(seconds_per_token));
  }

 private:
  py::function override(const char* name) const {
    py::function f = py::get_override(static_cast<const Drafter*>(this), name);
    if (!f) throw std::runtime_error(std::string("a Drafter must define ") + name + "()");
    return f;
  }
};

// A Python callable as a stop rule. Sessions are made and destroyed without the GIL as well.
class PyStopCheck final : public StopCheck {
 public:
  explicit PyStopCheck(py::object check) : check_(std::move(check)) {}
  PyStopCheck(const PyStopCheck&) = delete;
  PyStopCheck& operator=(const PyStopCheck&) = delete;
  ~PyStopCheck() override {
    py::gil_scoped_acquire gil;
    check_ = py::object();
  }
  bool stops_at(TokenId token) override {
    py::gil_scoped_acquire gil;
    return check_(token).cast<bool>();
  }

 private:
  py::object check_;
};

// A Python callable as the source of the rows' tokens; called with the GIL.
class PyRowTokens final : public RowTokens {
 public:
  explicit PyRowTokens(const py::object& next) : next_(next) {}
  TokenId next(NodeId row) override {
    py::gil_scoped_acquire gil;
    return next_(row).cast<TokenId>();
  }

 private:
  const py::object& next_;
};

void bind_drafters(py::module_& m) {
  py::class_<DrafterNeeds>(m, "DrafterNeeds")
      .def(py::init([](int max_nodes, int top_k, int max_accepted, bool prompt_outputs, float top_p,
                       bool step_cost) {
             return DrafterNeeds{max_nodes, top_k, max_accepted, prompt_outputs, top_p, step_cost};
           }),
           py::arg("max_nodes"), py::arg("top_k") = 0, py::arg("max_accepted") = 0,
           py::arg("prompt_outputs") = false, py::arg("top_p") = 0.0f, py::arg("step_cost") = false)
      .def_readonly("max_nodes", &DrafterNeeds::max_nodes)
      .def_readonly("top_k", &DrafterNeeds::top_k)
      .def_readonly("max_accepted", &DrafterNeeds::max_accepted)
      .def_readonly("prompt_outputs", &DrafterNeeds::prompt_outputs)
      .def_readonly("top_p", &DrafterNeeds::top_p)
      .def_readonly("step_cost", &DrafterNeeds::step_cost);

  py::class_<OwnedOutcome>(m, "StepOutcome")
      .def_readonly("tree", &OwnedOutcome::tree)
      .def_readonly("outputs", &OwnedOutcome::outputs)
      .def_readonly("accepted", &OwnedOutcome::accepted)
      .def_readonly("new_tokens", &OwnedOutcome::new_tokens);

  py::class_<Drafter, PyDrafter, py::smart_holder>(m, "Drafter")
      .def(py::init<>())
      .def("needs", &Drafter::needs)
      .def(
          "set_step_cost",
          [](Drafter& d, const std::vector<int>& rows, const std::vector<double>& seconds,
             const std::vector<double>& seconds_per_token) {
            d.set_step_cost(rows, seconds, seconds_per_token);
          },
          py::arg("rows"), py::arg("seconds"), py::arg("seconds_per_token"));
  py::class_<AutoregressiveDrafter, Drafter, py::smart_holder>(m, "AutoregressiveDrafter")
      .def(py::init<>());
}

py::dict stats_dict(const SessionStats& s) {
  py::dict out;
  out["steps"] = s.steps;
  out["tokens"] = s.tokens;
  out["hit_steps"] = s.hit_steps;
  out["hit_tokens"] = s.hit_tokens;
  out["candidate_nodes"] = s.candidate_nodes;
  out["draft_nodes"] = s.draft_nodes;
  out["accepted"] = s.accepted;
  out["accepted_histogram"] = s.accepted_histogram;
  return out;
}

const char* reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kNone:
      break;
  }
  return "";
}

py::tuple step_result(const StepResult& r) {
  return py::make_tuple(to_vector(r.tokens), r.accepted);
}

}  // namespace

void bind_session(py::module_& m) {
  bind_drafters(m);

  py::class_<Session>(m, "Session")
      .def(py::init([](std::vector<TokenId> prompt, std::shared_ptr<Drafter> drafter,
                       int max_seq_len, int max_new_tokens, float temperature, int top_k,
                       float top_p, float min_p, std::uint64_t seed, std::vector<TokenId> stop_ids,
                       py::object stop_check, int max_path, int output_top_k, int max_nodes,
                       int vocab_size, std::vector<int> node_buckets) {
             std::shared_ptr<StopCheck> check;
             if (!stop_check.is_none()) {
               check = std::make_shared<PyStopCheck>(std::move(stop_check));
             }
             py::gil_scoped_release nogil;
             return std::make_unique<Session>(
                 std::move(prompt), std::move(drafter),
                 SessionParams{max_new_tokens, temperature, top_k, top_p, min_p, seed,
                               std::move(stop_ids), std::move(check)},
                 SessionLimits{max_seq_len, max_path, output_top_k, max_nodes, vocab_size,
                               std::move(node_buckets)});
           }),
           py::arg("prompt"), py::arg("drafter").none(false), py::kw_only(), py::arg("max_seq_len"),
           py::arg("max_new_tokens") = 128, py::arg("temperature") = 0.0f, py::arg("top_k") = 0,
           py::arg("top_p") = 1.0f, py::arg("min_p") = 0.0f, py::arg("seed") = 0,
           py::arg("stop_ids") = std::vector<TokenId>{}, py::arg("stop_check") = py::none(),
           py::arg("max_path") = 64, py::arg("output_top_k") = 0,
           py::arg("max_nodes") = kMaxTreeNodes, py::arg("vocab_size") = 0,
           py::arg("node_buckets") = std::vector<int>{})
      .def(
          "observe_prompt",
          [](Session& s, int first, const py::buffer& outputs) {
            const py::buffer_info info = outputs.request();
            const auto ids = as_span<const TokenId>(info, "outputs");
            py::gil_scoped_release nogil;
            s.observe_prompt(first, ids);
          },
          py::arg("first"), py::arg("outputs"))
      .def(
          "plan",
          [](Session& s, const py::buffer& block) {
            const py::buffer_info info = block.request(/*writable=*/true);
            const auto bytes = as_span<unsigned char>(info, "block");
            py::gil_scoped_release nogil;
            return s.plan(bytes.data(), bytes.size());
          },
          py::arg("block"))
      .def(
          "commit",
          [](Session& s, const py::buffer& output) {
            const py::buffer_info info = output.request();
            const auto ids = as_span<const TokenId>(info, "output");
            StepResult result;
            {
              py::gil_scoped_release nogil;
              result = s.commit(ids);
            }
            return step_result(result);
          },
          py::arg("output"))
      .def(
          "commit_recursive",
          [](Session& s, const py::buffer& output, const py::buffer& probs) {
            const py::buffer_info info = output.request();
            const py::buffer_info p = probs.request();
            const auto ids = as_span<const TokenId>(info, "output");
            const auto values = as_span<const double>(p, "probs");
            const int vocab = p.ndim == 2 ? static_cast<int>(p.shape[1]) : 0;
            StepResult result;
            {
              py::gil_scoped_release nogil;
              result = s.commit_recursive(ids, values, vocab);
            }
            return step_result(result);
          },
          py::arg("output"), py::arg("probs"))
      .def(
          "commit_lazily",
          [](Session& s, const py::buffer& output, const py::object& next_token) {
            const py::buffer_info info = output.request();
            const auto ids = as_span<const TokenId>(info, "output");
            PyRowTokens rows(next_token);
            StepResult result;
            {
              py::gil_scoped_release nogil;
              result = s.commit_lazily(ids, rows);
            }
            return step_result(result);
          },
          py::arg("output"), py::arg("next_token"))
      .def_property_readonly("finished", &Session::finished)
      .def_property_readonly("finish_reason",
                             [](const Session& s) { return reason_name(s.finish_reason()); })
      .def_property_readonly("plan_bytes", &Session::plan_bytes)
      .def_property_readonly("kv_len", &Session::kv_len)
      .def_property_readonly("prompt_len", &Session::prompt_len)
      .def_property_readonly("token_ids",
                             [](const Session& s) { return to_vector(s.output_tokens()); })
      .def_property_readonly("accepted_rows",
                             [](const Session& s) { return to_vector(s.accepted_rows()); })
      .def_property_readonly("tree", [](const Session& s) { return TreeBuilder(s.tree()); })
      .def_property_readonly("stats", [](const Session& s) { return stats_dict(s.stats()); });
}

}  // namespace ptd
