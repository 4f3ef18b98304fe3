// Whole decoding loops over a toy model (the next token is a function of the last two): PTD must
// equal plain decoding whatever its limits, stay within its bounds, and stop where plain stops.
#include "ptd/session.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.h"
#include "ptd/ptd_drafter.h"

namespace {

using ptd::FinishReason;
using ptd::Session;
using ptd::TokenId;

TokenId toy_next(TokenId before, TokenId last) {
  return (before * 7 + last * 3 + before * last) % 37;
}

struct Run {
  std::vector<TokenId> tokens;
  FinishReason reason;
  ptd::SessionStats stats;
};

Run decode(std::vector<TokenId> prompt, std::shared_ptr<ptd::Drafter> drafter,
           ptd::SessionParams params, int max_seq_len, std::vector<int> buckets = {}) {
  Session session(prompt, drafter, params, {max_seq_len, 64, 0, ptd::kMaxTreeNodes, 37, buckets});
  std::vector<std::uint64_t> block(session.plan_bytes() / sizeof(std::uint64_t));
  while (!session.finished()) {
    const int bucket = session.plan(reinterpret_cast<unsigned char*>(block.data()),
                                    block.size() * sizeof(std::uint64_t));
    const auto& tree = session.tree();
    CHECK(tree.size() <= bucket);
    std::vector<TokenId> output(static_cast<std::size_t>(tree.size()));
    for (int row = 0; row < tree.size(); ++row) {
      const auto committed = session.tokens();
      TokenId before = committed.size() > 1 ? committed[committed.size() - 2] : 0;
      if (row > 0) before = tree.token(tree.parent(row));
      CHECK(session.kv_len() + tree.depth(row) < max_seq_len);
      output[static_cast<std::size_t>(row)] = toy_next(before, tree.token(row));
    }
    session.commit(output);
    CHECK(session.kv_len() ==
          session.prompt_len() + static_cast<int>(session.output_tokens().size()) - 1);
  }
  const auto tokens = session.output_tokens();
  return {{tokens.begin(), tokens.end()}, session.finish_reason(), session.stats()};
}

std::shared_ptr<ptd::Drafter> plain() { return std::make_shared<ptd::AutoregressiveDrafter>(); }

void ptd_equals_plain_under_every_limit() {
  for (int width = 1; width <= 4; ++width) {
    for (int depth = 1; depth <= 6; ++depth) {
      for (const int cap : {1, 5, 96}) {
        ptd::PTDOptions options;
        options.width = width;
        options.depth = depth;
        options.max_draft_nodes = cap;
        options.pool_nodes_per_key = cap;
        options.pool_max_keys = 8;
        options.eos_ids = {5};
        auto drafter = std::make_shared<ptd::PTDDrafter>(options);
        ptd::SessionParams params;
        params.max_new_tokens = 150;
        for (const auto& prompt : {std::vector<TokenId>{3, 9, 11, 3}, {5}, {1}}) {
          const auto expected = decode(prompt, plain(), params, 400);
          const auto got = decode(prompt, drafter, params, 400, {1, 8, 64, 160});
          CHECK(got.tokens == expected.tokens && got.reason == expected.reason);
          CHECK(drafter->draft_tree().size() <= cap);
          CHECK(drafter->pool().key_count() <= 8);
          CHECK(drafter->pool().total_nodes() <= 8 * cap);
        }
      }
    }
  }
}

// Toy successors of a row: its next token, then the tokens above it; of odd ones only the first
// two.
std::vector<TokenId> toy_listed(TokenId next) {
  const TokenId third = next % 2 == 1 ? -1 : (next + 2) % 37;
  return {next, next, (next + 1) % 37, third};
}

void ptd_equals_plain_with_every_option() {
  ptd::SessionParams params;
  params.max_new_tokens = 150;
  const std::vector<TokenId> prompt = {3, 9, 11, 3, 8};
  const auto expected = decode(prompt, plain(), params, 400).tokens;
  for (const auto expansion :
       {ptd::Expansion::kGreedy, ptd::Expansion::kTopK, ptd::Expansion::kTopP}) {
    for (const auto layout : {ptd::Layout::kSibling, ptd::Layout::kChained}) {
      for (const auto initialisation : {ptd::Initialisation::kRandom, ptd::Initialisation::kContext,
                                        ptd::Initialisation::kNer}) {
        ptd::PTDOptions options;
        options.expansion = expansion;
        options.expansion_k = 3;
        options.layout = layout;
        options.initialisation = initialisation;
        const auto drafter = std::make_shared<ptd::PTDDrafter>(options);
        drafter->set_seed_source([](ptd::Span<const TokenId> given) {
          return std::vector<std::vector<TokenId>>{{}, {given[1], given[2]}, {given[1]}, {4}};
        });
        const int k = drafter->needs().top_k;
        Session session(prompt, drafter, params, {400, 64, k, ptd::kMaxTreeNodes, 37, {}});
        if (initialisation == ptd::Initialisation::kNer) {
          CHECK(drafter->initial_chains() == std::vector<std::vector<TokenId>>({{9, 11}, {4}}));
        }
        std::vector<std::uint64_t> block(session.plan_bytes() / sizeof(std::uint64_t));
        while (!session.finished()) {
          session.plan(reinterpret_cast<unsigned char*>(block.data()),
                       block.size() * sizeof(std::uint64_t));
          std::vector<TokenId> output;
          for (int row = 0; row < session.tree().size(); ++row) {
            const auto committed = session.tokens();
            TokenId before = committed[committed.size() - 2];
            if (row > 0) before = session.tree().token(session.tree().parent(row));
            const auto listed = toy_listed(toy_next(before, session.tree().token(row)));
            output.insert(output.end(), listed.begin(), listed.begin() + 1 + k);
          }
          session.commit(output);
          CHECK(drafter->draft_tree().size() <= options.max_draft_nodes);
        }
        const auto tokens = session.output_tokens();
        CHECK(std::vector<TokenId>(tokens.begin(), tokens.end()) == expected);
        CHECK(session.stats().accepted > 0);
      }
    }
  }
}

void bad_options_are_refused() {
  ptd::PTDOptions options;
  options.expansion_k = 0;
  CHECK_THROWS(ptd::PTDDrafter{options}, ptd::InvalidArgument);
  options.expansion_k = 2;
  for (const float p : {0.0f, 1.5f, -1.0f}) {
    options.expansion_p = p;
    CHECK_THROWS(ptd::PTDDrafter{options}, ptd::InvalidArgument);
  }
}

void drafts_are_accepted() {
  ptd::SessionParams params;
  params.max_new_tokens = 300;
  const auto run =
      decode({3, 9, 11, 3}, std::make_shared<ptd::PTDDrafter>(ptd::PTDOptions{}), params, 1000);
  CHECK(run.stats.tokens == 300 && run.stats.steps < 200 && run.stats.accepted > 100);
}

void stops_and_limits_cut_exactly() {
  auto drafter = std::make_shared<ptd::PTDDrafter>(ptd::PTDOptions{});
  ptd::SessionParams params;
  params.max_new_tokens = 60;
  const auto free_run = decode({3, 9, 11, 3}, plain(), params, 1000).tokens;
  for (std::size_t i = 0; i < free_run.size(); ++i) {
    params.stop_ids = {free_run[i]};
    const auto expected = decode({3, 9, 11, 3}, plain(), params, 1000);
    const auto got = decode({3, 9, 11, 3}, drafter, params, 1000);
    CHECK(got.tokens == expected.tokens && got.reason == FinishReason::kStop);
    CHECK(got.tokens.back() == free_run[i]);
  }
  params.stop_ids.clear();
  for (int n = 0; n < 12; ++n) {
    params.max_new_tokens = n;
    const auto got = decode({3, 9, 11, 3}, drafter, params, 1000);
    CHECK(static_cast<int>(got.tokens.size()) == n && got.reason == FinishReason::kLength);
  }
  params.max_new_tokens = 1000;
  CHECK(decode({3, 9, 11, 3}, drafter, params, 12).tokens.size() == 8);
  CHECK_THROWS(decode({1, 2, 3}, drafter, params, 3), ptd::InvalidArgument);
  CHECK_THROWS(decode({}, drafter, params, 3), ptd::InvalidArgument);
}

// Step i proposes the chain chains[i]; the last one from then on.
class ForcedChains final : public ptd::Drafter {
 public:
  explicit ForcedChains(std::vector<std::vector<TokenId>> chains) : chains_(std::move(chains)) {}
  ptd::DrafterNeeds needs() const override { return {64, 0}; }
  void begin(ptd::Span<const TokenId>) override { step_ = 0; }
  void propose(ptd::Span<const TokenId>, ptd::TreeBuilder& tree) override {
    ptd::NodeId parent = 0;
    for (const TokenId token : chains_[std::min(step_, chains_.size() - 1)]) {
      if (parent >= 0) parent = tree.add_candidate(parent, token);
    }
  }
  void observe(const ptd::StepOutcome& outcome) override {
    observed.insert(observed.end(), outcome.new_tokens.begin(), outcome.new_tokens.end());
    ++step_;
    if (faulty) throw std::domain_error("the drafter's own fault");
  }
  std::vector<TokenId> observed;
  bool faulty = false;

 private:
  std::vector<std::vector<TokenId>> chains_;
  std::size_t step_ = 0;
};

// Stops where `rule` says so, and notes what it was asked.
class Recorder final : public ptd::StopCheck {
 public:
  explicit Recorder(std::function<bool(TokenId)> rule) : rule_(std::move(rule)) {}
  bool stops_at(TokenId token) override {
    asked.push_back(token);
    return rule_(token);
  }
  std::vector<TokenId> asked;

 private:
  std::function<bool(TokenId)> rule_;
};

const std::vector<TokenId> kPrompt = {3, 9, 11, 3};

std::vector<TokenId> plain_output(int n) {
  ptd::SessionParams params;
  params.max_new_tokens = n;
  return decode(kPrompt, plain(), params, 1000).tokens;
}

void a_stop_check_is_asked_once_a_token_and_in_order() {
  const auto expected = plain_output(20);
  for (std::size_t end = 1; end <= expected.size(); ++end) {
    std::size_t count = 0;
    const auto check = std::make_shared<Recorder>([&](TokenId) { return ++count == end; });
    const auto drafter = std::make_shared<ForcedChains>(
        std::vector<std::vector<TokenId>>{{expected.begin(), expected.begin() + 9}, {}});
    ptd::SessionParams params;
    params.max_new_tokens = 1000;
    params.stop_check = check;
    const auto got = decode(kPrompt, drafter, params, 1000);
    CHECK(got.reason == FinishReason::kStop);
    CHECK(got.tokens ==
          std::vector<TokenId>(expected.begin(), expected.begin() + static_cast<long>(end)));
    CHECK(check->asked == got.tokens && drafter->observed == got.tokens);
    CHECK(got.stats.tokens == static_cast<std::int64_t>(end));
    CHECK(got.stats.accepted == static_cast<std::int64_t>(std::min<std::size_t>(end, 9)));
  }
}

void rules_that_meet_at_one_token() {
  const auto output = plain_output(4);
  const auto never = std::make_shared<Recorder>([](TokenId) { return false; });
  const auto always = std::make_shared<Recorder>([](TokenId) { return true; });
  const auto drafter =
      std::make_shared<ForcedChains>(std::vector<std::vector<TokenId>>{{output[0], output[1]}});
  ptd::SessionParams params;
  params.max_new_tokens = 1;
  params.stop_check = always;
  CHECK(decode(kPrompt, drafter, params, 1000).reason == FinishReason::kStop);
  CHECK(decode(kPrompt, drafter, params, 5).reason ==
        FinishReason::kStop);  // the context's end too
  params.stop_check = never;
  CHECK(decode(kPrompt, drafter, params, 1000).reason == FinishReason::kLength);
  params.stop_ids = {output[0]};
  CHECK(decode(kPrompt, drafter, params, 1000).reason == FinishReason::kStop);
  CHECK(never->asked == std::vector<TokenId>({output[0], output[0]}));  // about the stop id too
  params.max_new_tokens = 0;
  CHECK(decode(kPrompt, drafter, params, 1000).reason == FinishReason::kLength);
  CHECK(never->asked.size() == 2);
}

// The plain output, told token by token; notes the rows that were asked about.
class Told final : public ptd::RowTokens {
 public:
  Told(const Session& session, const std::vector<TokenId>& output)
      : session_(session), output_(output) {}
  TokenId next(ptd::NodeId row) override {
    rows.push_back(row);
    return output_.at(session_.output_tokens().size());  // what leads to the row is out already
  }
  std::vector<ptd::NodeId> rows;

 private:
  const Session& session_;
  const std::vector<TokenId>& output_;
};

void a_lazy_walk_asks_once_a_token_and_ends_as_the_other_does() {
  const auto output = plain_output(20);
  const std::vector<TokenId> chain(output.begin(), output.begin() + 9);
  for (int budget = 1; budget <= 12; ++budget) {
    const auto drafter =
        std::make_shared<ForcedChains>(std::vector<std::vector<TokenId>>{chain, {0, 0}});
    ptd::SessionParams params;
    params.max_new_tokens = budget;
    const auto expected = decode(kPrompt, drafter, params, 1000);
    drafter->observed.clear();
    Session session(kPrompt, drafter, params, {1000, 64, 0, ptd::kMaxTreeNodes, 37, {}});
    std::vector<std::uint64_t> block(session.plan_bytes() / sizeof(std::uint64_t));
    Told told(session, output);
    while (!session.finished()) {
      session.plan(reinterpret_cast<unsigned char*>(block.data()), session.plan_bytes());
      const std::vector<TokenId> unread(static_cast<std::size_t>(session.tree().size()), -1);
      const std::size_t asked = told.rows.size();
      const auto step = session.commit_lazily(unread, told);
      CHECK(told.rows.size() == asked + step.tokens.size() && told.rows[asked] == 0);
      const auto accepted = session.accepted_rows();
      CHECK(accepted.size() == static_cast<std::size_t>(step.accepted));
      for (std::size_t i = 1; i < step.tokens.size(); ++i) {
        CHECK(told.rows[asked + i] == accepted[i - 1]);
      }
    }
    const auto tokens = session.output_tokens();
    CHECK(std::vector<TokenId>(tokens.begin(), tokens.end()) == expected.tokens);
    CHECK(drafter->observed == expected.tokens);
    CHECK(session.stats().accepted_histogram == expected.stats.accepted_histogram);
    CHECK(session.kv_len() == session.prompt_len() + budget - 1);
  }
}

// A step that throws, in the check or in the drafter, leaves output and counters as before it.
void a_step_that_throws_fails_the_session_only() {
  const auto output = plain_output(6);
  const std::vector<TokenId> chain(output.begin(), output.begin() + 4);
  const auto drafter = std::make_shared<ForcedChains>(std::vector<std::vector<TokenId>>{{}, chain});
  drafter->faulty = true;
  ptd::SessionParams params;
  for (const bool in_check : {true, false}) {
    params.stop_check = std::make_shared<Recorder>([in_check](TokenId) -> bool {
      if (in_check) throw std::domain_error("the check's own fault");
      return true;  // the finish it decides is taken back as well
    });
    Session session(kPrompt, drafter, params, {100, 64, 0, ptd::kMaxTreeNodes, 37, {}});
    std::vector<std::uint64_t> block(session.plan_bytes() / sizeof(std::uint64_t));
    auto* const bytes = reinterpret_cast<unsigned char*>(block.data());
    session.plan(bytes, session.plan_bytes());
    CHECK_THROWS(session.commit(output), std::domain_error);
    CHECK(session.output_tokens().empty() && session.kv_len() == session.prompt_len() - 1);
    CHECK(session.stats().steps == 0 && session.stats().tokens == 0 && !session.finished());
    CHECK_THROWS(session.plan(bytes, session.plan_bytes()), std::logic_error);
    CHECK_THROWS(session.commit(output), std::logic_error);
  }
  drafter->faulty = false;
  params.stop_check = nullptr;
  params.max_new_tokens = 6;
  CHECK(decode(kPrompt, drafter, params, 100).tokens == output);
}

void missing_prediction_fails_the_request_only() {
  auto drafter = plain();
  Session session({1, 2}, drafter, {}, {100, 64, 0, ptd::kMaxTreeNodes, 0, {}});
  std::vector<std::uint64_t> block(session.plan_bytes() / sizeof(std::uint64_t));
  session.plan(reinterpret_cast<unsigned char*>(block.data()), session.plan_bytes());
  const std::vector<TokenId> not_finite = {-1};
  CHECK_THROWS(session.commit(not_finite), ptd::NonFiniteLogits);
  CHECK_THROWS(session.commit(not_finite), std::logic_error);
  ptd::SessionParams params;
  params.max_new_tokens = 4;
  CHECK(decode({1, 2}, drafter, params, 100).tokens.size() == 4);
}

// Tokens that no model has are refused where they come in: a drafter that learnt them, and keeps
// what it learnt, would propose them in a later request.
void tokens_outside_the_vocabulary_are_refused() {
  const ptd::SessionLimits limits = {100, 64, 1, ptd::kMaxTreeNodes, 37, {}};
  CHECK_THROWS(Session({1, 37}, plain(), {}, limits), ptd::InvalidArgument);
  CHECK_THROWS(Session({-1}, plain(), {}, limits), ptd::InvalidArgument);
  Session session({1, 2}, plain(), {}, limits);
  CHECK_THROWS(session.observe_prompt(0, std::vector<TokenId>{3, 37}), ptd::InvalidArgument);
  std::vector<std::uint64_t> block(session.plan_bytes() / sizeof(std::uint64_t));
  session.plan(reinterpret_cast<unsigned char*>(block.data()), session.plan_bytes());
  CHECK_THROWS(session.commit(std::vector<TokenId>{37, 1}), ptd::InvalidArgument);
  CHECK_THROWS(session.commit(std::vector<TokenId>{1, -2}), ptd::InvalidArgument);
  CHECK(session.commit(std::vector<TokenId>{36, -1}).tokens.size() == 1);  // nothing happened
}

}  // namespace

int main() {
  ptd_equals_plain_under_every_limit();
  ptd_equals_plain_with_every_option();
  bad_options_are_refused();
  drafts_are_accepted();
  stops_and_limits_cut_exactly();
  a_stop_check_is_asked_once_a_token_and_in_order();
  rules_that_meet_at_one_token();
  a_lazy_walk_asks_once_a_token_and_ends_as_the_other_does();
  a_step_that_throws_fails_the_session_only();
  missing_prediction_fails_the_request_only();
  tokens_outside_the_vocabulary_are_refused();
}
