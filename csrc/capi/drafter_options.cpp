#include "drafter_options.h"

#include <algorithm>
#include <charconv>
#include <type_traits>
#include <utility>

#include "flat_json.h"
#include "messages.h"
#include "ptd/hybrid_drafter.h"
#include "ptd/lookahead_drafter.h"
#include "ptd/prompt_lookup_drafter.h"
#include "ptd/ptd_drafter.h"
#include "ptd/self_draft_drafter.h"
#include "ptd/suffix_drafter.h"
#include "ptd/token_recycling_drafter.h"

namespace ptd::capi {
namespace {

constexpr int kMostRows = kMaxTreeNodes - 1;  // of a step, root left out
constexpr int kMostKeys = 1 << 24;

template <class T>
std::string to_text(T number) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, number).ptr};
}

template <class T>
struct Choice {
  const char* name;
  T value;
};

// Sets options from JSON fields.
class Reader {
 public:
  explicit Reader(std::vector<JsonField> fields) : fields_(std::move(fields)) {}

  void integer(const char* name, int& out, int low, int high) {
    const JsonValue* v = take(name);
    if (v == nullptr) return;
    // A magnitude of 2^32 and more is out of every range, so the sign cannot overflow below.
    const bool fits = v->kind == JsonValue::Kind::kInteger && v->magnitude < (1ull << 32);
    const auto whole = static_cast<long long>(fits ? v->magnitude : 0) * (v->negative ? -1 : 1);
    if (!fits || whole < low || whole > high) {
      refuse(name, *v, "an integer from " + to_text(low) + " to " + to_text(high));
    }
    out = static_cast<int>(whole);
  }

  void seed(const char* name, std::uint64_t& out) {
    const JsonValue* v = take(name);
    if (v == nullptr) return;
    if (v->kind != JsonValue::Kind::kInteger || (v->negative && v->magnitude != 0)) {
      refuse(name, *v, "an integer from 0 to 2^64 - 1");
    }
    out = v->magnitude;
  }

  template <class T>
  void number(const char* name, T& out, double low, double high) {
    const JsonValue* v = take(name);
    if (v == nullptr) return;
    const bool number = v->kind == JsonValue::Kind::kInteger || v->kind == JsonValue::Kind::kNumber;
    if (!number || !(v->number >= low && v->number <= high)) {
      refuse(name, *v, "a number from " + to_text(low) + " to " + to_text(high));
    }
    out = static_cast<T>(v->number);
  }

  void boolean(const char* name, bool& out) {
    const JsonValue* v = take(name);
    if (v == nullptr) return;
    if (v->kind != JsonValue::Kind::kBool) refuse(name, *v, "true or false");
    out = v->boolean;
  }

  template <class T, std::size_t N>
  void choice(const char* name, T& out, const Choice<T> (&choices)[N]) {
    const JsonValue* v = take(name);
    if (v == nullptr) return;
    std::string allowed;
    for (const auto& c : choices) {
      if (v->kind == JsonValue::Kind::kString && v->text == c.name) {
        out = c.value;
        return;
      }
      allowed += (allowed.empty() ? "\"" : " or \"") + std::string(c.name) + "\"";
    }
    refuse(name, *v, allowed);
  }

  // Every field of the JSON must have been one of the options.
  void finish(std::string_view drafter) const {
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      if (std::find(taken_.begin(), taken_.end(), i) != taken_.end()) continue;
      throw InvalidArgument("the option " + quoted(fields_[i].key) + " is not one of drafter " +
                            quoted(drafter) + ": allowed is " + (known_.empty() ? "none" : known_) +
                            ".");
    }
  }

 private:
  const JsonValue* take(const char* name) {
    known_ += (known_.empty() ? "" : ", ") + std::string(name);
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      if (fields_[i].key != name) continue;
      taken_.push_back(i);
      return &fields_[i].value;
    }
    return nullptr;
  }

  [[noreturn]] static void refuse(const char* name, const JsonValue& value,
                                  const std::string& allowed) {
    const bool string = value.kind == JsonValue::Kind::kString;
    throw InvalidArgument(std::string(name) + "=" +
                          (string ? quoted(value.text) : value.text.substr(0, 40)) +
                          " is not valid: allowed is " + allowed + ".");
  }

  std::vector<JsonField> fields_;
  std::vector<std::size_t> taken_;
  std::string known_;
};

// Writes options as JSON.
class Writer {
 public:
  void integer(const char* name, int value, int, int) { add(name, to_text(value)); }
  void seed(const char* name, std::uint64_t value) { add(name, to_text(value)); }
  template <class T>
  void number(const char* name, T value, double, double) {
    add(name, to_text(value));
  }
  void boolean(const char* name, bool value) { add(name, value ? "true" : "false"); }
  template <class T, std::size_t N>
  void choice(const char* name, T value, const Choice<T> (&choices)[N]) {
    for (const auto& c : choices) {
      if (c.value == value) add(name, "\"" + std::string(c.name) + "\"");
    }
  }
  std::string text() const { return "{" + text_ + "}"; }

 private:
  void add(const char* name, const std::string& value) {
    text_ += (text_.empty() ? "\"" : ", \"") + std::string(name) + "\": " + value;
  }
  std::string text_;
};

struct NoOptions {};

template <class Visitor>
void visit(Visitor&, NoOptions&) {}

// Without "ner": the core knows no text, so there is nobody to find names in it.
template <class Visitor>
void visit(Visitor& v, PTDOptions& o) {
  static constexpr Choice<Expansion> kExpansions[] = {
      {"greedy", Expansion::kGreedy}, {"top-k", Expansion::kTopK}, {"top-p", Expansion::kTopP}};
  static constexpr Choice<Initialisation> kInitialisations[] = {
      {"random", Initialisation::kRandom}, {"context", Initialisation::kContext}};
  static constexpr Choice<Layout> kLayouts[] = {{"sibling", Layout::kSibling},
                                                {"chained", Layout::kChained}};
  v.integer("width", o.width, 1, 64);
  v.integer("depth", o.depth, 1, 64);
  v.integer("max_draft_nodes", o.max_draft_nodes, 1, kMostRows);
  v.integer("max_candidate_nodes", o.max_candidate_nodes, 0, kMostRows);
  v.integer("pool_nodes_per_key", o.pool_nodes_per_key, 1, 65536);
  v.integer("pool_max_keys", o.pool_max_keys, 1, kMostKeys);
  v.boolean("recycle_verified", o.recycle_verified);
  v.boolean("share_pool", o.share_pool);
  v.seed("seed", o.seed);
  v.choice("expansion", o.expansion, kExpansions);
  v.integer("expansion_k", o.expansion_k, 1, 64);
  v.number("expansion_p", o.expansion_p, 1e-6, 1.0);
  v.choice("initialisation", o.initialisation, kInitialisations);
  v.choice("layout", o.layout, kLayouts);
}

template <class Visitor>
void visit(Visitor& v, PromptLookupOptions& o) {
  v.integer("max_ngram", o.max_ngram, 1, 64);
  v.integer("max_candidate_nodes", o.max_candidate_nodes, 1, 64);
}

template <class Visitor>
void visit(Visitor& v, TokenRecyclingOptions& o) {
  v.integer("max_candidate_nodes", o.max_candidate_nodes, 1, kMostRows);
  v.integer("successors", o.successors, 1, 32);
  v.boolean("warm", o.warm);
}

template <class Visitor>
void visit(Visitor& v, SuffixOptions& o) {
  v.integer("max_candidate_nodes", o.max_candidate_nodes, 1, kMostRows);
  v.integer("max_depth", o.max_depth, 2, 64);
  v.number("factor", o.factor, 0.01, 64.0);
  v.number("min_probability", o.min_probability, 0.0, 1.0);
  v.boolean("as_tree", o.as_tree);
  v.integer("index_tokens", o.index_tokens, 0, 1 << 26);
}

template <class Visitor>
void visit(Visitor& v, LookaheadOptions& o) {
  v.integer("level", o.level, 3, 16);
  v.integer("window", o.window, 1, kMaxTreeNodes);
  v.integer("guesses", o.guesses, 1, kMaxTreeNodes);
  v.boolean("prompt_ngrams", o.prompt_ngrams);
  v.boolean("faithful", o.faithful);
  v.integer("pool_max_keys", o.pool_max_keys, 1, kMostKeys);
  v.seed("seed", o.seed);
}

// Without a corpus: it is a file, and nothing here reads files.
template <class Visitor>
void visit(Visitor& v, SelfDraftOptions& o) {
  v.integer("branches", o.branches, 1, 64);
  v.integer("length", o.length, 3, 64);
  v.integer("ngram", o.ngram, 2, 63);
  v.integer("ngrams_per_key", o.ngrams_per_key, 1, kMaxTreeNodes);
  v.boolean("faithful", o.faithful);
  v.integer("pool_max_keys", o.pool_max_keys, 1, kMostKeys);
  v.seed("seed", o.seed);
}

template <class Visitor>
void visit(Visitor& v, HybridOptions& o) {
  v.integer("max_candidate_nodes", o.max_candidate_nodes, 1, kMostRows);
  v.boolean("auto_budget", o.auto_budget);
  v.integer("max_draft_nodes", o.max_draft_nodes, 0, kMostRows - 1);
  v.integer("width", o.width, 1, 64);
  v.integer("depth", o.depth, 1, 64);
  v.integer("successors", o.successors, 1, 8);
  v.boolean("prompt_outputs", o.prompt_outputs);
  v.boolean("keep_statistics", o.keep_statistics);
  v.boolean("keep_tables", o.keep_tables);
  v.integer("table_entries", o.table_entries, 16, kMostKeys);
  v.seed("seed", o.seed);
}

template <class Options>
Options published() {
  Options options;
  if constexpr (std::is_same_v<Options, HybridOptions>) options.auto_budget = true;
  return options;
}

template <class Options>
std::string defaults() {
  Options options = published<Options>();
  Writer writer;
  visit(writer, options);
  return writer.text();
}

template <class Made, class Options>
std::shared_ptr<Drafter> make(std::string_view name, std::string_view json,
                              std::vector<TokenId> eos_ids) {
  Options options = published<Options>();
  Reader reader(json.empty() ? std::vector<JsonField>()
                             : parse_flat_json(json.data(), json.size()));
  visit(reader, options);
  reader.finish(name);
  if constexpr (std::is_same_v<Options, PTDOptions> || std::is_same_v<Options, HybridOptions>) {
    options.eos_ids = std::move(eos_ids);
  }
  if constexpr (std::is_same_v<Options, NoOptions>) {
    return std::make_shared<Made>();
  } else {
    return std::make_shared<Made>(std::move(options));
  }
}

struct Entry {
  const char* name;
  std::string (*defaults)();
  std::shared_ptr<Drafter> (*make)(std::string_view, std::string_view, std::vector<TokenId>);
};

template <class Made, class Options>
constexpr Entry entry(const char* name) {
  return {name, &defaults<Options>, &make<Made, Options>};
}

constexpr Entry kEntries[] = {
    entry<AutoregressiveDrafter, NoOptions>("none"),
    entry<PTDDrafter, PTDOptions>("ptd"),
    entry<PromptLookupDrafter, PromptLookupOptions>("prompt-lookup"),
    entry<TokenRecyclingDrafter, TokenRecyclingOptions>("token-recycling"),
    entry<SuffixDrafter, SuffixOptions>("suffix"),
    entry<LookaheadDrafter, LookaheadOptions>("lookahead"),
    entry<SelfDraftDrafter, SelfDraftOptions>("self-draft"),
    entry<HybridDrafter, HybridOptions>("hybrid"),
};

std::string all_names() {
  std::string names;
  for (const Entry& e : kEntries) names += (names.empty() ? "" : ", ") + std::string(e.name);
  return names;
}

const Entry& find(std::string_view name) {
  for (const Entry& e : kEntries) {
    if (name == e.name) return e;
  }
  throw InvalidArgument("drafter=" + quoted(name) + " is not valid: allowed is one of " +
                        all_names() + ".");
}

}  // namespace

std::string drafter_defaults(std::string_view name) { return find(name).defaults(); }

std::shared_ptr<Drafter> make_drafter(std::string_view name, std::string_view json,
                                      std::vector<TokenId> eos_ids) {
  return find(name).make(name, json, std::move(eos_ids));
}

}  // namespace ptd::capi
