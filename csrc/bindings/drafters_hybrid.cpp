#include <memory>

#include "bindings.h"
#include "ptd/hybrid_drafter.h"

namespace py = pybind11;

namespace ptd {

void bind_hybrid_drafter(py::module_& m) {
  py::class_<HybridDrafter, Drafter, py::smart_holder>(m, "HybridDrafter")
      .def(py::init([](int max_candidate_nodes, bool auto_budget, int max_draft_nodes, int width,
                       int depth, int successors, bool prompt_outputs, bool keep_statistics,
                       bool keep_tables, int table_entries, std::uint32_t sources,
                       std::uint64_t seed, std::vector<TokenId> eos_ids) {
             return std::make_shared<HybridDrafter>(
                 HybridOptions{max_candidate_nodes, auto_budget, max_draft_nodes, width, depth,
                               successors, prompt_outputs, keep_statistics, keep_tables,
                               table_entries, sources, seed, std::move(eos_ids)});
           }),
           py::arg("max_candidate_nodes") = 64, py::arg("auto_budget") = false,
           py::arg("max_draft_nodes") = 0, py::arg("width") = 1, py::arg("depth") = 6,
           py::arg("successors") = 8, py::arg("prompt_outputs") = false,
           py::arg("keep_statistics") = false, py::arg("keep_tables") = false,
           py::arg("table_entries") = 1 << 15, py::arg("sources") = ~0u, py::arg("seed") = 0,
           py::arg("eos_ids") = std::vector<TokenId>{})
      .def_property_readonly("acceptance_state", [](HybridDrafter& d) { return d.model().state(); })
      .def(
          "load_acceptance_state",
          [](HybridDrafter& d, const std::vector<float>& state) { d.model().load(state); },
          py::arg("state"))
      .def_property_readonly("reliability",
                             [](HybridDrafter& d) {
                               const auto& r = d.model().reliability();
                               return py::make_tuple(r.proposed, r.predicted, r.right);
                             })
      .def_property_readonly("budgets", &HybridDrafter::budgets)
      .def(
          "step_seconds", [](const HybridDrafter& d, int rows) { return d.cost().of(rows); },
          py::arg("rows"))
      .def_property_readonly("root", &HybridDrafter::root)
      .def_property_readonly(
          "nodes",
          [](const HybridDrafter& d) {
            py::list out;
            for (const auto& n : d.nodes()) {
              out.append(py::make_tuple(n.token, n.parent, n.probability, n.sources, n.accepted));
            }
            return out;
          })
      .def_property_readonly("source_counts", [](const HybridDrafter& d) {
        py::dict out;
        for (std::size_t s = 0; s < d.source_counts().size(); ++s) {
          const auto& c = d.source_counts()[s];
          out[draft_source_name(static_cast<DraftSource>(s))] =
              py::make_tuple(c.proposed, c.accepted, c.alone);
        }
        return out;
      });
}

}  // namespace ptd
