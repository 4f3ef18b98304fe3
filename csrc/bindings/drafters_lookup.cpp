#include <memory>

#include "bindings.h"
#include "ptd/prompt_lookup_drafter.h"
#include "ptd/suffix_drafter.h"
#include "ptd/token_recycling_drafter.h"

namespace py = pybind11;

namespace ptd {

void bind_lookup_drafters(py::module_& m) {
  py::class_<PromptLookupDrafter, Drafter, py::smart_holder>(m, "PromptLookupDrafter")
      .def(py::init([](int max_ngram, int max_candidate_nodes) {
             return std::make_shared<PromptLookupDrafter>(
                 PromptLookupOptions{max_ngram, max_candidate_nodes});
           }),
           py::arg("max_ngram") = 3, py::arg("max_candidate_nodes") = 10)
      .def_property_readonly("indexed_ngrams", &PromptLookupDrafter::indexed_ngrams);

  py::class_<TokenRecyclingDrafter, Drafter, py::smart_holder>(m, "TokenRecyclingDrafter")
      .def(py::init([](int max_candidate_nodes, int successors, bool warm) {
             return std::make_shared<TokenRecyclingDrafter>(
                 TokenRecyclingOptions{max_candidate_nodes, successors, warm});
           }),
           py::arg("max_candidate_nodes") = 80, py::arg("successors") = 8, py::arg("warm") = false)
      .def_property_readonly("static_tree",
                             [](const TokenRecyclingDrafter& d) {
                               std::vector<std::pair<int, int>> nodes;
                               for (const RankNode& node : d.static_tree()) {
                                 nodes.emplace_back(node.parent, node.rank);
                               }
                               return nodes;
                             })
      .def_property_readonly("known_tokens", &TokenRecyclingDrafter::known_tokens)
      .def(
          "successors",
          [](const TokenRecyclingDrafter& d, TokenId token) {
            const auto ids = d.successors(token);
            return std::vector<TokenId>(ids.begin(), ids.end());
          },
          py::arg("token"));

  py::class_<SuffixDrafter, Drafter, py::smart_holder>(m, "SuffixDrafter")
      .def(py::init([](int max_candidate_nodes, int max_depth, double factor,
                       double min_probability, bool as_tree, int index_tokens) {
             return std::make_shared<SuffixDrafter>(SuffixOptions{
                 max_candidate_nodes, max_depth, factor, min_probability, as_tree, index_tokens});
           }),
           py::arg("max_candidate_nodes") = 32, py::arg("max_depth") = 64, py::arg("factor") = 1.0,
           py::arg("min_probability") = 0.1, py::arg("as_tree") = true, py::arg("index_tokens") = 0)
      .def_property_readonly("text_nodes",
                             [](const SuffixDrafter& d) { return d.text().node_count(); })
      .def_property_readonly("indexed_tokens", &SuffixDrafter::indexed_tokens);
}

}  // namespace ptd
