#include <pybind11/functional.h>
#include <pybind11/numpy.h>

#include <memory>
#include <utility>

#include "bindings.h"
#include "ptd/candidate_pool.h"
#include "ptd/draft_tree.h"
#include "ptd/rng.h"
#include "ptd/step_plan.h"
#include "ptd/verify.h"

namespace py = pybind11;

namespace ptd {
namespace {

// Children of `parent` as nested (token, [children]) tuples.
py::list nested(const TokenTree& tree, NodeId parent) {
  py::list out;
  for (NodeId c = tree.node(parent).first_child; c != kNoNode; c = tree.node(c).next_sibling) {
    out.append(py::make_tuple(tree.node(c).token, nested(tree, c)));
  }
  return out;
}

std::vector<std::pair<TokenId, int>> draft_rows(const DraftTree& draft) {
  std::vector<std::pair<TokenId, int>> out;
  for (std::size_t i = 0; i < draft.rows().size(); ++i) {
    out.emplace_back(draft.tree().node(draft.rows()[i]).token, draft.parent_rows()[i]);
  }
  return out;
}

// The walks trust their caller; Python's lists are checked here.
void check_walk(const std::vector<TokenId>& tokens, const std::vector<NodeId>& parents,
                int n_verify) {
  if (n_verify < 1 || n_verify > kMaxTreeNodes) {
    throw InvalidArgument::for_field("n_verify", n_verify, "an integer from 1 to 256");
  }
  const auto rows = static_cast<std::size_t>(n_verify);
  if (tokens.size() < rows || parents.size() < rows) {
    throw InvalidArgument::for_field("n_verify", n_verify, "at most len(tokens) and len(parents)");
  }
  for (int row = 1; row < n_verify; ++row) {
    const NodeId parent = parents[static_cast<std::size_t>(row)];
    if (parent < 0 || parent >= row) {
      throw InvalidArgument::for_field("parents[" + std::to_string(row) + "]", parent,
                                       "an earlier row");
    }
  }
}

class CallableUniforms final : public UniformSource {
 public:
  explicit CallableUniforms(std::function<double(int, int)> draw) : draw_(std::move(draw)) {}
  double draw(int depth, int k) override { return draw_(depth, k); }

 private:
  std::function<double(int, int)> draw_;
};

void bind_draft_tree(py::module_& m) {
  py::class_<DraftTree>(m, "DraftTree")
      .def(py::init<int, int, int, std::vector<TokenId>>(), py::arg("width"), py::arg("depth"),
           py::arg("max_nodes") = 96, py::arg("eos_ids") = std::vector<TokenId>{})
      .def("init", &DraftTree::init, py::arg("chains"))
      .def("rows", &draft_rows)
      .def(
          "expand",
          [](DraftTree& t, const std::vector<TokenId>& predictions, int each) {
            t.expand(predictions, each);
          },
          py::arg("predictions"), py::arg("each") = 1)
      .def("refill", &DraftTree::refill)
      .def("step_and_prune", &DraftTree::step_and_prune)
      .def("roots", [](const DraftTree& t) { return nested(t.tree(), t.top()); })
      .def("__len__", &DraftTree::size)
      .def_property_readonly("capacity", [](const DraftTree& t) { return t.tree().capacity(); });
}

void bind_candidate_pool(py::module_& m) {
  py::class_<CandidatePool>(m, "CandidatePool")
      .def(py::init<int, int>(), py::arg("max_nodes_per_key") = 60, py::arg("max_keys") = 4096)
      .def("merge", py::overload_cast<const DraftTree&>(&CandidatePool::merge),
           py::arg("draft_tree"))
      .def(
          "retrieve",
          [](CandidatePool& pool, TokenId token, int budget) {
            std::vector<CandidateNode> nodes;
            pool.retrieve(token, budget, nodes);
            std::vector<std::pair<TokenId, int>> out;
            for (const auto& n : nodes) out.emplace_back(n.token, n.parent);
            return out;
          },
          py::arg("token"), py::arg("budget"))
      .def("dump",
           [](const CandidatePool& pool) {
             py::dict out;
             for (const TokenId key : pool.keys_by_age()) {
               out[py::int_(key)] = nested(pool.tree(), pool.find_top(key));
             }
             return out;
           })
      .def("clear", &CandidatePool::clear)
      .def_property_readonly("total_nodes", &CandidatePool::total_nodes)
      .def_property_readonly("key_count", &CandidatePool::key_count)
      .def_property_readonly("capacity",
                             [](const CandidatePool& p) { return p.tree().capacity(); });
}

void bind_tree_builder(py::module_& m) {
  py::class_<TreeBuilder, std::shared_ptr<TreeBuilder>>(m, "TreeBuilder")
      .def(py::init([](TokenId root, int max_nodes, int max_path, int max_depth) {
             TreeBuilder tree;
             tree.begin(root, max_nodes, max_path, max_depth);
             return tree;
           }),
           py::arg("root"), py::arg("max_nodes") = kMaxTreeNodes, py::arg("max_path") = 64,
           py::arg("max_depth") = 1 << 30)
      .def("add_candidate", &TreeBuilder::add_candidate, py::arg("parent"), py::arg("token"))
      .def("add_draft", &TreeBuilder::add_draft, py::arg("parent"), py::arg("token"))
      .def("__len__", &TreeBuilder::size)
      .def_property_readonly("n_verify", &TreeBuilder::n_verify)
      .def_property_readonly("room", &TreeBuilder::room)
      .def_property_readonly("tokens",
                             [](const TreeBuilder& t) {
                               return std::vector<TokenId>(t.tokens().begin(), t.tokens().end());
                             })
      .def_property_readonly("parents",
                             [](const TreeBuilder& t) {
                               return std::vector<NodeId>(t.parents().begin(), t.parents().end());
                             })
      .def_property_readonly("depths",
                             [](const TreeBuilder& t) {
                               std::vector<int> depths;
                               for (int i = 0; i < t.size(); ++i) depths.push_back(t.depth(i));
                               return depths;
                             })
      .def(
          "pack",
          [](const TreeBuilder& t, int prefix_len, const std::vector<std::int32_t>& commit_src,
             float temperature, int top_k, float top_p, float min_p, std::uint64_t seed,
             int n_bucket, int max_path) {
            const auto layout = PlanLayout::of(n_bucket, max_path);
            std::vector<std::uint64_t> block(layout.total / sizeof(std::uint64_t));
            auto* bytes = reinterpret_cast<unsigned char*>(block.data());
            pack_plan(t, {prefix_len, commit_src, temperature, top_k, top_p, min_p, seed}, n_bucket,
                      max_path, bytes);
            return py::bytes(reinterpret_cast<const char*>(bytes), layout.total);
          },
          py::arg("prefix_len"), py::arg("commit_src") = std::vector<std::int32_t>{},
          py::arg("temperature") = 0.0f, py::arg("top_k") = 0, py::arg("top_p") = 1.0f,
          py::arg("min_p") = 0.0f, py::arg("seed") = 0, py::arg("n_bucket"),
          py::arg("max_path") = 64);
}

}  // namespace

void bind_trees(py::module_& m) {
  bind_draft_tree(m);
  bind_candidate_pool(m);
  bind_tree_builder(m);

  m.def(
      "plan_layout",
      [](int n_bucket, int max_path) {
        const auto layout = PlanLayout::of(n_bucket, max_path);
        py::dict out;
        const auto put = [&out](const char* name, const PlanField& f) {
          out[name] = py::make_tuple(f.offset, f.size);
        };
        put("header", layout.header);
        put("sampling", layout.sampling);
        put("token_ids", layout.token_ids);
        put("positions", layout.positions);
        put("commit_src", layout.commit_src);
        put("temperature", layout.temperature);
        put("uniform", layout.uniform);
        put("mask", layout.mask);
        out["total"] = layout.total;
        return out;
      },
      py::arg("n_bucket"), py::arg("max_path"));
  m.def("philox_uniform", &philox_uniform, py::arg("seed"), py::arg("position"),
        py::arg("draw") = 0);
  m.def(
      "philox4x32", [](PhiloxCounter counter, PhiloxKey key) { return philox4x32(counter, key); },
      py::arg("counter"), py::arg("key"));
  m.def(
      "verify_walk",
      [](const std::vector<TokenId>& tokens, const std::vector<NodeId>& parents,
         const std::vector<TokenId>& next_tokens, int n_verify) {
        check_walk(tokens, parents, n_verify);
        if (next_tokens.size() < static_cast<std::size_t>(n_verify)) {
          throw InvalidArgument::for_field("n_verify", n_verify, "at most len(next_tokens)");
        }
        std::vector<NodeId> path;
        verify_walk(tokens, parents, next_tokens, 1, n_verify, path);
        return path;
      },
      py::arg("tokens"), py::arg("parents"), py::arg("next_tokens"), py::arg("n_verify"));
  m.def(
      "verify_recursive",
      [](const std::vector<TokenId>& tokens, const std::vector<NodeId>& parents, int n_verify,
         const py::array_t<double, py::array::c_style | py::array::forcecast>& probs,
         std::function<double(int, int)> draw) {
        check_walk(tokens, parents, n_verify);
        if (probs.ndim() != 2 || probs.shape(0) < n_verify) {
          throw InvalidArgument("probs is not valid: allowed is an array [n_verify, vocab].");
        }
        CallableUniforms uniforms(std::move(draw));
        std::vector<NodeId> path;
        const TokenId last = verify_recursive(
            tokens, parents, {probs.data(), static_cast<std::size_t>(probs.size())}, n_verify,
            static_cast<int>(probs.shape(1)), uniforms, path);
        return std::make_pair(path, last);
      },
      py::arg("tokens"), py::arg("parents"), py::arg("n_verify"), py::arg("probs"),
      py::arg("draw"));
}

}  // namespace ptd
