// Decodes a Llama checkpoint with ptd::core and ptd::cpu: no Python in the process.
//
//   embed_llama MODEL_DIR [--max-new-tokens N] [--max-seq-len N] [--threads N] [--ignore-eos]
//               [--drafter none|ptd|suffix|hybrid] [TOKEN_ID...]
//
// The prompt's token ids come from the command line, else from standard input; the output's ids go
// to standard output, greedily chosen, and what they took to standard error.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint.h"
#include "llama.h"
#include "ptd/hybrid_drafter.h"
#include "ptd/ptd_drafter.h"
#include "ptd/session.h"
#include "ptd/suffix_drafter.h"

namespace {

using embed_llama::LlamaConfig;

struct Options {
  std::string model;
  int max_new_tokens = 64;
  int max_seq_len = 2048;
  int threads = 0;
  bool ignore_eos = false;
  std::string drafter = "ptd";
  std::vector<std::int32_t> prompt;
};

int to_int(const std::string& name, const std::string& text, int low, int high) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < low || value > high) {
    throw std::runtime_error(name + "='" + text + "' is not an integer from " +
                             std::to_string(low) + " to " + std::to_string(high));
  }
  return value;
}

Options parse(const std::vector<std::string>& arguments) {
  Options o;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name.rfind("--", 0) != 0) {
      if (o.model.empty()) {
        o.model = name;
      } else {
        o.prompt.push_back(to_int("a token id", name, 0, 1 << 24));
      }
      continue;
    }
    if (name == "--ignore-eos") {
      o.ignore_eos = true;
      continue;
    }
    if (i + 1 == arguments.size()) throw std::runtime_error(name + " needs a value");
    const std::string& value = arguments[++i];
    if (name == "--max-new-tokens") {
      o.max_new_tokens = to_int(name, value, 1, 1 << 24);
    } else if (name == "--max-seq-len") {
      o.max_seq_len = to_int(name, value, 2, 1 << 20);
    } else if (name == "--threads") {
      o.threads = to_int(name, value, 1, 1024);
    } else if (name == "--drafter") {
      o.drafter = value;
    } else {
      throw std::runtime_error("unknown option " + name);
    }
  }
  if (o.model.empty()) throw std::runtime_error("usage: embed_llama MODEL_DIR [options] [id...]");
  if (o.threads == 0) {
    o.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  if (o.prompt.empty()) {
    for (std::string word; std::cin >> word;) {
      o.prompt.push_back(to_int("a token id", word, 0, 1 << 24));
    }
  }
  return o;
}

std::shared_ptr<ptd::Drafter> make_drafter(const std::string& name, const LlamaConfig& config) {
  if (name == "none") return std::make_shared<ptd::AutoregressiveDrafter>();
  if (name == "suffix") return std::make_shared<ptd::SuffixDrafter>(ptd::SuffixOptions{});
  if (name == "ptd") {  // a tree for a CPU, on which every row costs
    ptd::PTDOptions options;
    options.width = 1;
    options.depth = 2;
    options.max_draft_nodes = 2;
    options.max_candidate_nodes = 8;
    options.recycle_verified = true;
    options.eos_ids = config.eos_ids;
    return std::make_shared<ptd::PTDDrafter>(options);
  }
  if (name == "hybrid") {
    ptd::HybridOptions options;
    options.auto_budget = true;
    options.eos_ids = config.eos_ids;
    return std::make_shared<ptd::HybridDrafter>(options);
  }
  throw std::runtime_error("--drafter='" + name + "' is not one of none, ptd, suffix, hybrid");
}

void run(const Options& options) {
  const embed_llama::Checkpoint checkpoint(options.model);
  const LlamaConfig& config = checkpoint.config();
  const auto drafter = make_drafter(options.drafter, config);

  ptd::SessionLimits limits;
  limits.max_seq_len = std::min(options.max_seq_len, config.max_position_embeddings);
  limits.max_nodes = std::min(ptd::kMaxTreeNodes, 1 + drafter->needs().max_nodes);
  limits.top_k = drafter->needs().top_k;
  limits.vocab_size = config.vocab_size;
  ptd::SessionParams params;
  params.max_new_tokens = options.max_new_tokens;
  if (!options.ignore_eos) params.stop_ids = config.eos_ids;
  for (const std::int32_t id : options.prompt) {
    if (id >= config.vocab_size) {
      throw std::runtime_error("the prompt's token id " + std::to_string(id) +
                               " is not below vocab_size=" + std::to_string(config.vocab_size));
    }
  }

  ptd::Session session(options.prompt, drafter, params, limits);
  embed_llama::Llama model(checkpoint, options.threads, limits.max_seq_len, limits.max_nodes,
                           limits.max_path, limits.top_k);
  model.prefill(options.prompt);

  const auto begin = std::chrono::steady_clock::now();
  while (!session.finished()) {
    const int bucket = session.plan(model.block(), model.block_size());
    session.commit(model.step(bucket));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;

  const char* separator = "";
  for (const std::int32_t id : session.output_tokens()) {
    std::printf("%s%d", separator, id);
    separator = " ";
  }
  std::printf("\n");
  const ptd::SessionStats& stats = session.stats();
  std::fprintf(stderr, "%lld tokens in %lld steps (%.2f a step), %.1f tokens/s\n",
               static_cast<long long>(stats.tokens), static_cast<long long>(stats.steps),
               static_cast<double>(stats.tokens) / static_cast<double>(stats.steps),
               static_cast<double>(stats.tokens) / seconds.count());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse({argv + 1, argv + argc}));
    return 0;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "embed_llama: no memory is left for a model of this size\n");
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "embed_llama: %s\n", error.what());
    return 2;
  }
}
