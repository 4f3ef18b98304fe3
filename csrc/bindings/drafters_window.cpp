#include <map>
#include <memory>
#include <utility>

#include "bindings.h"
#include "ptd/lookahead_drafter.h"
#include "ptd/self_draft_drafter.h"

namespace py = pybind11;

namespace ptd {
namespace {

// Keys and their tuples, both from the least to the most recently used.
py::dict pool_dict(const NgramPool& pool) {
  py::dict out;
  for (const TokenId key : pool.keys_by_age()) {
    const Span<const TokenId> tokens = pool.find(key);
    py::list tuples;
    for (std::size_t i = 0; i < tokens.size(); i += static_cast<std::size_t>(pool.length())) {
      tuples.append(py::tuple(
          py::cast(std::vector<TokenId>(tokens.begin() + i, tokens.begin() + i + pool.length()))));
    }
    out[py::int_(key)] = tuples;
  }
  return out;
}

std::vector<std::vector<TokenId>> window_levels(const LevelWindow& window) {
  std::vector<std::vector<TokenId>> levels;
  for (int l = 0; l < window.filled(); ++l) levels.push_back(window.level(l));
  return levels;
}

NgramCorpus make_corpus(const std::map<TokenId, std::vector<std::vector<TokenId>>>& lists,
                        int ngram) {
  NgramCorpus corpus;
  for (const auto& [key, ngrams] : lists) {
    std::vector<TokenId>& tokens = corpus[key];
    for (const auto& ids : ngrams) {
      if (static_cast<int>(ids.size()) != ngram) {
        throw InvalidArgument::for_field("tokens of an n-gram of the corpus",
                                         static_cast<long long>(ids.size()),
                                         "ngram=" + std::to_string(ngram));
      }
      tokens.insert(tokens.end(), ids.begin(), ids.end());
    }
  }
  return corpus;
}

}  // namespace

void bind_window_drafters(py::module_& m) {
  py::class_<LookaheadDrafter, Drafter, py::smart_holder>(m, "LookaheadDrafter")
      .def(py::init([](int level, int window, int guesses, bool prompt_ngrams, bool faithful,
                       int pool_max_keys, std::uint64_t seed) {
             return std::make_shared<LookaheadDrafter>(LookaheadOptions{
                 level, window, guesses, prompt_ngrams, faithful, pool_max_keys, seed});
           }),
           py::arg("level") = 5, py::arg("window") = 15, py::arg("guesses") = 15,
           py::arg("prompt_ngrams") = false, py::arg("faithful") = false,
           py::arg("pool_max_keys") = 4096, py::arg("seed") = 0)
      .def_property_readonly("pool", [](const LookaheadDrafter& d) { return pool_dict(d.pool()); })
      .def_property_readonly("window",
                             [](const LookaheadDrafter& d) { return window_levels(d.window()); });

  py::class_<SelfDraftDrafter, Drafter, py::smart_holder>(m, "SelfDraftDrafter")
      .def(
          py::init([](int branches, int length, int ngram, int ngrams_per_key,
                      const std::map<TokenId, std::vector<std::vector<TokenId>>>& corpus,
                      int corpus_candidates, bool faithful, int pool_max_keys, std::uint64_t seed) {
            return std::make_shared<SelfDraftDrafter>(SelfDraftOptions{
                branches, length, ngram, ngrams_per_key, make_corpus(corpus, ngram),
                corpus_candidates, faithful, pool_max_keys, seed});
          }),
          py::arg("branches") = 6, py::arg("length") = 6, py::arg("ngram") = 4,
          py::arg("ngrams_per_key") = 10,
          py::arg("corpus") = std::map<TokenId, std::vector<std::vector<TokenId>>>{},
          py::arg("corpus_candidates") = 3, py::arg("faithful") = false,
          py::arg("pool_max_keys") = 4096, py::arg("seed") = 0)
      .def_property_readonly("pool", [](const SelfDraftDrafter& d) { return pool_dict(d.pool()); })
      .def_property_readonly("window",
                             [](const SelfDraftDrafter& d) { return window_levels(d.window()); })
      .def_property_readonly("perturbations", &SelfDraftDrafter::perturbations);
}

}  // namespace ptd
