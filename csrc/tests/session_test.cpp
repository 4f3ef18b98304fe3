// Whole decoding loops over a toy model (the next token is a function of the last two): PTD must
// equal plain decoding whatever its limits, stay within its bounds, and stop where plain stops.
#include "ptd/session.h"

#include <memory>
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

}  // namespace

int main() {
  ptd_equals_plain_under_every_limit();
  drafts_are_accepted();
  stops_and_limits_cut_exactly();
  missing_prediction_fails_the_request_only();
}
