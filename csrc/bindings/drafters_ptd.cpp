#include <pybind11/functional.h>

#include <memory>
#include <optional>
#include <utility>

#include "bindings.h"
#include "ptd/ptd_drafter.h"

namespace py = pybind11;

namespace ptd {
namespace {

// The names of PTDConfig's choices.
template <class T>
struct Choice {
  const char* name;
  T value;
};
constexpr Choice<Expansion> kExpansions[] = {
    {"greedy", Expansion::kGreedy}, {"top-k", Expansion::kTopK}, {"top-p", Expansion::kTopP}};
constexpr Choice<Initialisation> kInitialisations[] = {{"random", Initialisation::kRandom},
                                                       {"context", Initialisation::kContext},
                                                       {"ner", Initialisation::kNer}};
constexpr Choice<Layout> kLayouts[] = {{"sibling", Layout::kSibling},
                                       {"chained", Layout::kChained}};

template <class T, std::size_t N>
T choose(const char* field, const std::string& name, const Choice<T> (&choices)[N]) {
  std::string allowed;
  for (const auto& choice : choices) {
    if (name == choice.name) return choice.value;
    allowed += (allowed.empty() ? "'" : " or '") + std::string(choice.name) + "'";
  }
  throw InvalidArgument(std::string(field) + "='" + name + "' is not valid: allowed is " + allowed +
                        ".");
}

template <class T, std::size_t N>
std::string name_of(T value, const Choice<T> (&choices)[N]) {
  for (const auto& choice : choices) {
    if (value == choice.value) return choice.name;
  }
  return "";
}

using Chains = std::vector<std::vector<TokenId>>;
using PySeedSource = std::function<Chains(std::vector<TokenId>)>;  // takes the GIL when called

std::shared_ptr<PTDDrafter> make(int width, int depth, int max_draft_nodes, int max_candidate_nodes,
                                 int pool_nodes_per_key, int pool_max_keys, bool recycle_verified,
                                 bool share_pool, std::uint64_t seed, std::vector<TokenId> eos_ids,
                                 const std::string& expansion, int expansion_k, float expansion_p,
                                 const std::string& initialisation, const std::string& layout) {
  PTDOptions options;
  options.width = width;
  options.depth = depth;
  options.max_draft_nodes = max_draft_nodes;
  options.max_candidate_nodes = max_candidate_nodes;
  options.pool_nodes_per_key = pool_nodes_per_key;
  options.pool_max_keys = pool_max_keys;
  options.recycle_verified = recycle_verified;
  options.share_pool = share_pool;
  options.seed = seed;
  options.eos_ids = std::move(eos_ids);
  options.expansion = choose("expansion", expansion, kExpansions);
  options.expansion_k = expansion_k;
  options.expansion_p = expansion_p;
  options.initialisation = choose("initialisation", initialisation, kInitialisations);
  options.layout = choose("layout", layout, kLayouts);
  return std::make_shared<PTDDrafter>(std::move(options));
}

void set_seed_source(PTDDrafter& drafter, const std::optional<PySeedSource>& source) {
  if (!source) {
    drafter.set_seed_source({});
    return;
  }
  drafter.set_seed_source([source = *source](Span<const TokenId> prompt) {
    return source(std::vector<TokenId>(prompt.begin(), prompt.end()));
  });
}

}  // namespace

void bind_ptd_drafter(py::module_& m) {
  const PTDOptions defaults;
  py::class_<PTDDrafter, Drafter, py::smart_holder>(m, "PTDDrafter")
      .def(py::init(&make), py::arg("width") = defaults.width, py::arg("depth") = defaults.depth,
           py::arg("max_draft_nodes") = defaults.max_draft_nodes,
           py::arg("max_candidate_nodes") = defaults.max_candidate_nodes,
           py::arg("pool_nodes_per_key") = defaults.pool_nodes_per_key,
           py::arg("pool_max_keys") = defaults.pool_max_keys,
           py::arg("recycle_verified") = defaults.recycle_verified,
           py::arg("share_pool") = defaults.share_pool, py::arg("seed") = defaults.seed,
           py::arg("eos_ids") = defaults.eos_ids, py::arg("expansion") = "greedy",
           py::arg("expansion_k") = defaults.expansion_k,
           py::arg("expansion_p") = defaults.expansion_p, py::arg("initialisation") = "random",
           py::arg("layout") = "sibling")
      .def_property_readonly("draft_tree", &PTDDrafter::draft_tree,
                             py::return_value_policy::reference_internal)
      .def_property_readonly("pool", &PTDDrafter::pool, py::return_value_policy::reference_internal)
      .def_property_readonly("initial_chains", &PTDDrafter::initial_chains)
      .def_property_readonly(
          "initialisation",
          [](const PTDDrafter& d) { return name_of(d.options().initialisation, kInitialisations); })
      .def_property_readonly("has_seed_source", &PTDDrafter::has_seed_source)
      .def("set_seed_source", &set_seed_source, py::arg("source"));
}

}  // namespace ptd
