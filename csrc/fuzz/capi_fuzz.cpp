// The C interface: any drafter name and options, then any calls on two handles, with null pointers
// and wrong sizes among them. A call returns one of the documented codes, never INTERNAL; one that
// was refused changed nothing; every failure has a message; and a request whose caller kept to the
// rules ends with plain decoding's tokens.
#include <cstring>
#include <string>
#include <vector>

#include "input.h"
#include "ptd/ptd.h"

namespace {

using Tokens = std::vector<std::int32_t>;

constexpr int kVocab = 23;

std::int32_t next_of(std::int32_t before, std::int32_t last) {
  return (before * 7 + last * 3 + before * last) % kVocab;
}

// Names and numbers of the options, so that an input need not spell them out.
std::string draw_options(ptd_fuzz::Input& input, std::string* name) {
  static const char* const kNames[] = {"none",          "ptd",    "lookahead", "self-draft",
                                       "prompt-lookup", "suffix", "hybrid",    "token-recycling"};
  static const char* const kKeys[] = {"width",
                                      "depth",
                                      "max_draft_nodes",
                                      "max_candidate_nodes",
                                      "pool_nodes_per_key",
                                      "share_pool",
                                      "level",
                                      "window",
                                      "guesses",
                                      "branches",
                                      "length",
                                      "ngram",
                                      "max_ngram",
                                      "successors",
                                      "warm",
                                      "auto_budget",
                                      "layout",
                                      "expansion",
                                      "max_depth",
                                      "factor",
                                      "keep_tables",
                                      "seed",
                                      "recycle_verified",
                                      "no_such_option",
                                      ""};
  static const char* const kValues[] = {
      "1",    "2",    "4",     "0",   "-1",  "300",        "true",        "false", "\"top-k\"",
      "\"\"", "null", "1e400", "[1]", "0.5", "2147483648", "\"\\u0000\"", "{}"};
  *name = kNames[input.between(0, 7)];
  std::string text;
  if (input.one_in(8)) {  // anything
    for (int n = input.byte(); n > 0; --n) text += static_cast<char>(input.byte());
    if (input.one_in(4)) *name = text.substr(0, 8);
    return text;
  }
  if (input.one_in(3)) return text;
  text = "{";
  for (int n = input.between(0, 4); n > 0; --n) {
    if (text.size() > 1) text += ", ";
    text +=
        std::string("\"") + kKeys[input.between(0, 24)] + "\": " + kValues[input.between(0, 16)];
  }
  return text + (input.one_in(16) ? "" : "}");
}

// The state of one handle, as its caller knows it.
struct Handle {
  ptd_session* session = nullptr;
  ptd_needs needs{};
  std::vector<std::uint64_t> block;
  ptd_plan plan{};
  bool planned = false;
  bool vocab_is_ours = false;
  bool honest = false;  // this request's outputs are the model's own
  bool running = false;
  Tokens text;
  std::size_t prompt = 0;
};

class Run {
 public:
  explicit Run(ptd_fuzz::Input& input) : input_(input) {}
  ~Run() {
    for (Handle& handle : handles_) ptd_session_destroy(handle.session);
  }

  void go() {
    for (Handle& handle : handles_) create(handle);
    for (int calls = 0; !input_.empty() && calls < 120; ++calls) {
      Handle& handle = handles_[input_.between(0, 1)];
      switch (input_.between(0, 7)) {
        case 0:
          begin(handle);
          break;
        case 1:
        case 2:
          plan(handle);
          break;
        case 3:
        case 4:
          commit(handle, true);
          break;
        case 5:
          commit(handle, false);
          break;
        case 6:
          observe(handle);
          break;
        default:
          look(handle);
      }
    }
  }

 private:
  // Every call goes through here.
  bool ok(ptd_status status, const Handle& handle) {
    EXPECT(status >= PTD_OK && status < PTD_ERROR_BUSY);  // neither BUSY nor INTERNAL
    if (status == PTD_OK) return true;
    const char* const said = ptd_last_error();
    EXPECT(said != nullptr && said[0] != '\0' && std::strlen(said) < 512);
    for (const char* at = said; *at != '\0'; ++at) EXPECT(*at >= 32 && *at < 127);
    if (handle.session != nullptr)
      EXPECT(std::strcmp(ptd_session_error(handle.session), said) == 0);
    return false;
  }

  static bool refused(ptd_status status) {
    return status == PTD_ERROR_ARGUMENT || status == PTD_ERROR_ORDER;
  }

  void create(Handle& handle) {
    std::string name;
    const std::string options = draw_options(input_, &name);
    ptd_config config{};
    config.struct_size = input_.one_in(16) ? input_.byte() : sizeof config;
    config.vocab_size = input_.one_in(8) ? input_.wild(0, kVocab) : kVocab;
    config.max_seq_len = input_.wild(20, 200);
    config.output_top_k = input_.one_in(2) ? 0 : input_.wild(0, 9);
    config.max_path = input_.one_in(2) ? 0 : input_.wild(1, 64);
    config.max_nodes = input_.one_in(2) ? 0 : input_.wild(1, 256);
    const Tokens buckets = {1, input_.wild(1, 256), 256};
    if (input_.one_in(2)) config.node_buckets = buckets.data();
    config.n_node_buckets = input_.one_in(2) ? buckets.size() : 0;
    const Tokens eos = {input_.wild(0, kVocab - 1)};
    if (input_.one_in(3)) config.eos_ids = eos.data();
    config.n_eos_ids = config.eos_ids == nullptr && input_.one_in(8) ? 1 : eos.size();
    const auto status = ptd_session_create(name.data(), name.size(), options.data(), options.size(),
                                           input_.one_in(32) ? nullptr : &config, &handle.session);
    EXPECT((status == PTD_OK) == (handle.session != nullptr));
    if (!ok(status, handle)) return;
    handle.needs.struct_size = sizeof handle.needs;
    EXPECT(ptd_session_needs(handle.session, &handle.needs) == PTD_OK);
    EXPECT(handle.needs.max_nodes >= 1 && handle.needs.max_nodes <= 256);
    handle.block.resize(handle.needs.plan_bytes / sizeof(std::uint64_t));
    handle.vocab_is_ours = config.vocab_size == kVocab;
  }

  void begin(Handle& handle) {
    Tokens prompt(static_cast<std::size_t>(input_.between(0, 30)));
    const bool wild = input_.one_in(8);
    for (auto& token : prompt) token = wild ? input_.wild(-1, kVocab) : input_.between(0, 2);
    ptd_request request{};
    request.struct_size = input_.one_in(16) ? input_.byte() : sizeof request;
    request.max_new_tokens = input_.one_in(8) ? input_.wild(0, 50) : input_.between(1, 50);
    request.temperature = input_.one_in(8) ? -1.0f : 0.0f;
    const auto status =
        ptd_session_begin(handle.session, input_.one_in(16) ? nullptr : prompt.data(),
                          prompt.size(), input_.one_in(32) ? nullptr : &request);
    if (!ok(status, handle)) {
      if (!refused(status)) handle.running = false;
      return;
    }
    handle.text = prompt;
    handle.prompt = prompt.size();
    handle.planned = false;
    handle.running = request.max_new_tokens > 0;
    handle.honest = handle.vocab_is_ours;
  }

  void plan(Handle& handle) {
    const std::size_t size = handle.block.size() * sizeof(std::uint64_t);
    const std::size_t given = input_.one_in(16) ? input_.byte() : size;
    ptd_plan plan{};
    plan.struct_size = input_.one_in(16) ? input_.byte() : sizeof plan;
    const auto status = ptd_session_plan(
        handle.session, input_.one_in(32) ? nullptr : handle.block.data(), given, &plan);
    if (!ok(status, handle)) {
      if (!refused(status)) handle.running = false;
      return;
    }
    EXPECT(handle.running && !handle.planned && given >= handle.needs.plan_bytes);
    handle.planned = true;
    // Fields behind a smaller struct_size are not there.
    handle.plan = plan;
    if (plan.struct_size < sizeof plan) {
      handle.honest = false;
      return;
    }
    EXPECT(plan.n_nodes >= 1 && plan.n_nodes <= plan.bucket && plan.n_verify <= plan.n_nodes);
    EXPECT(plan.prefix_len == static_cast<std::int32_t>(handle.text.size()) - 1);
    EXPECT(plan.token_ids[0] == handle.text.back());
  }

  // [n_nodes, stride] of the toy model: what stands above a row is in its mask.
  Tokens answers(const Handle& handle) {
    const ptd_plan& plan = handle.plan;
    Tokens output;
    for (int row = 0; row < plan.n_nodes; ++row) {
      int parent = -1;  // the deepest of the rows it sees besides itself
      for (int other = 0; other < plan.n_nodes; ++other) {
        const auto word = plan.mask[row * plan.mask_words + other / 64];
        const bool seen = (word >> (other % 64)) & 1u;
        if (seen && other != row &&
            (parent < 0 || plan.positions[other] > plan.positions[parent])) {
          parent = other;
        }
      }
      const std::size_t n = handle.text.size();
      const std::int32_t before =
          parent >= 0 ? plan.token_ids[parent] : (n > 1 ? handle.text[n - 2] : 0);
      const std::int32_t next = next_of(before, plan.token_ids[row]);
      for (int k = 0; k < handle.needs.output_stride; ++k) {
        output.push_back(k == 0 ? next : (next + k - 1) % kVocab);
      }
    }
    return output;
  }

  void commit(Handle& handle, bool of_the_model) {
    of_the_model = of_the_model && handle.planned && handle.honest;
    Tokens output;
    if (of_the_model) {
      output = answers(handle);
    } else {
      output.resize(input_.one_in(4)
                        ? input_.byte()
                        : static_cast<std::size_t>(handle.planned ? handle.plan.n_nodes *
                                                                        handle.needs.output_stride
                                                                  : 3));
      for (auto& token : output) token = input_.wild(-1, kVocab);
    }
    ptd_step step{};
    step.struct_size = sizeof step;
    const auto status = ptd_session_commit(handle.session, output.data(), output.size(), &step);
    if (!ok(status, handle)) {
      EXPECT(!of_the_model);
      if (!refused(status)) handle.running = handle.planned = false;
      return;
    }
    EXPECT(handle.running && handle.planned && step.n_tokens >= 1);
    handle.planned = false;
    handle.honest = handle.honest && of_the_model;
    for (std::size_t i = 0; i < step.n_tokens; ++i) {
      const std::int32_t token = step.tokens[i];
      const std::size_t n = handle.text.size();
      if (handle.honest) {
        EXPECT(token == next_of(n > 1 ? handle.text[n - 2] : 0, handle.text.back()));
      }
      handle.text.push_back(token);
    }
    handle.running = step.finish_reason == PTD_RUNNING;
  }

  void observe(Handle& handle) {
    Tokens outputs(static_cast<std::size_t>(input_.between(0, 60)));
    for (auto& token : outputs) token = input_.wild(-1, kVocab - 1);
    const auto status =
        ptd_session_observe_prompt(handle.session, static_cast<std::size_t>(input_.between(0, 255)),
                                   outputs.data(), outputs.size());
    if (!ok(status, handle) && !refused(status)) handle.running = false;
  }

  void look(Handle& handle) {
    const std::int32_t* tokens = nullptr;
    std::size_t n_tokens = 0;
    if (ok(ptd_session_output(handle.session, &tokens, &n_tokens), handle) && handle.honest) {
      EXPECT(n_tokens == handle.text.size() - handle.prompt);
      for (std::size_t i = 0; i < n_tokens; ++i) {
        EXPECT(tokens[i] == handle.text[handle.prompt + i]);
      }
    }
    ptd_stats stats{};
    stats.struct_size = input_.one_in(8) ? input_.byte() : sizeof stats;
    ok(ptd_session_stats(handle.session, &stats), handle);
    char buffer[64];
    std::size_t needed = 0;
    const std::string name(3, static_cast<char>(input_.byte()));
    ok(ptd_drafter_options(input_.one_in(2) ? "ptd" : name.data(), input_.one_in(2) ? 3 : 1, buffer,
                           static_cast<std::size_t>(input_.between(0, 64)), &needed),
       Handle{});
    const std::int32_t rows[2] = {1, input_.wild(0, 9)};
    const double seconds[2] = {1e-3, input_.one_in(8) ? -1.0 : 2e-3};
    ok(ptd_session_set_step_cost(handle.session, rows, seconds, seconds,
                                 static_cast<std::size_t>(input_.between(0, 2))),
       handle);
  }

  ptd_fuzz::Input& input_;
  Handle handles_[2];
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ptd_fuzz::Input input(data, size);
  Run(input).go();
  return 0;
}
