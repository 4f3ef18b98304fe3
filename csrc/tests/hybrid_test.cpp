// The parts of the hybrid drafter: context tables, acceptance model, step cost; and a whole
// request.
#include <cmath>
#include <memory>
#include <vector>

#include "check.h"
#include "ptd/hybrid_drafter.h"
#include "ptd/session.h"

namespace {

using namespace ptd;

ContextKey key_of(const std::vector<TokenId>& tokens) {
  ContextKey key;
  for (const TokenId token : tokens) key = key.next(token);
  return key;
}

void test_keys_name_the_last_tokens() {
  const ContextKey a = key_of({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  const ContextKey b = key_of({70, 8, 9, 10});
  for (int order = 1; order <= 3; ++order) CHECK(a.of(order) == b.of(order));
  CHECK(a.of(4) != b.of(4));
  CHECK(a.of(2) != key_of({10, 9}).of(2));
  CHECK(key_of({0}).of(1) != key_of({0, 0}).of(2));
  CHECK(b.length() == 4);
  CHECK(a.length() == kMaxContextOrder);
}

void test_text_table_counts_and_forgets() {
  TextTable table(16);
  for (const TokenId token : {5, 6, 5, 7}) table.add(1, token);
  const TextTable::Entry* entry = table.find(1);
  CHECK(entry != nullptr);
  CHECK(entry->tokens[0] == 7 && entry->tokens[1] == 5 && entry->tokens[2] == 6);
  CHECK(entry->counts[0] == 1 && entry->counts[1] == 2 && entry->counts[2] == 1);
  for (int i = 0; i < 70000; ++i) table.add(1, 5);  // counts stay below their limit
  CHECK(table.find(1)->tokens[0] == 5 && table.find(1)->counts[0] > 30000);
  for (TokenId token = 100; token < 110; ++token) table.add(1, token);  // four slots
  CHECK(table.find(1)->tokens[3] == 106);
  const std::size_t bytes = table.bytes();
  for (std::uint64_t key = 2; key < 5000; ++key) table.add(key << 20, 1);
  CHECK(table.bytes() == bytes);
  CHECK(table.find(std::uint64_t{4999} << 20) != nullptr);
  table.clear();
  CHECK(table.find(std::uint64_t{4999} << 20) == nullptr);
}

void test_long_paths_count_where_they_hold() {
  PathDiscount discount;
  const float usual = discount.value();
  CHECK(usual < 1.0f);
  for (int step = 0; step < 30; ++step) {  // eight of nine nodes, each 0.9
    discount.begin_step();
    for (int node = 0; node < 9; ++node) discount.observe(0.9, node < 8);
  }
  CHECK(discount.value() > 0.95f && discount.value() <= 1.0f);
  for (int step = 0; step < 100; ++step) {
    discount.begin_step();
    discount.observe(0.5, false);
  }
  CHECK(discount.value() == usual);  // never less
  discount.begin_step();
  for (int node = 0; node < 99; ++node) discount.observe(0.5, true);
  CHECK(discount.value() == 1.0f);  // nor more than the probabilities themselves
  discount.begin();
  CHECK(discount.value() == usual);
}

void test_acceptance_learns_who_is_right() {
  AcceptanceModel model;
  AcceptanceModel::Node node;
  const auto predict = [&] {
    model.begin(node, 1);
    model.open(node, DraftSource::kToken, 0);
    model.propose(node, DraftSource::kToken, 0, 11);
    model.propose(node, DraftSource::kToken, 1, 22);
    model.open(node, DraftSource::kPair, 0);
    model.propose(node, DraftSource::kPair, 3, 22);
    model.propose(node, DraftSource::kPair, 4, 22);  // a second word: not counted
    model.finish(node);
  };
  predict();
  CHECK(node.size() == 2);
  CHECK(node.sources(0) == 1u << static_cast<int>(DraftSource::kToken));
  CHECK(node.sources(1) ==
        (1u << static_cast<int>(DraftSource::kToken) | 1u << static_cast<int>(DraftSource::kPair)));
  for (int i = 0; i < 400; ++i) {
    predict();
    model.learn(node, 22);
  }
  predict();
  CHECK(node.probability(1) > 0.9f);
  CHECK(node.probability(0) < 0.1f);
  const std::vector<float> state = model.state();
  CHECK(state.size() == static_cast<std::size_t>(AcceptanceModel::kStateSize));
  AcceptanceModel other;
  other.load(state);
  CHECK_THROWS(other.load({1.0f}), InvalidArgument);
  for (const float x : other.state()) CHECK(std::isfinite(x));
  model.reset();
  predict();
  CHECK(node.probability(1) < 0.9f);
}

void test_more_tokens_than_a_node_holds() {
  AcceptanceModel model;
  AcceptanceModel::Node node;
  model.begin(node, 0);
  model.open(node, DraftSource::kToken, 0);
  for (TokenId token = 0; token < 50; ++token) model.propose(node, DraftSource::kToken, 0, token);
  model.finish(node);
  CHECK(node.size() == AcceptanceModel::kMaxProposals);
  float total = 0.0f;
  for (int i = 0; i < node.size(); ++i) total += node.probability(i);
  CHECK(total > 0.0f && total < 2.0f);
}

void test_cost_follows_what_is_measured() {
  StepCost cost;
  CHECK(cost.of(1) == 1.0 && cost.of(256) == 1.0);
  for (int i = 0; i < 20; ++i) cost.observe(1, 0.010);
  CHECK(std::abs(cost.of(1) - 0.010) < 1e-6);
  const double guess = cost.of(32);
  for (int i = 0; i < 60; ++i) cost.observe(32, 0.040);
  CHECK(std::abs(cost.of(32) - 0.040) < 1e-3 && cost.of(32) != guess);
  CHECK(cost.of(16) > cost.of(1) && cost.of(16) < cost.of(32));
  const double before = cost.of(32);
  cost.observe(32, 10.0);  // a hiccup
  CHECK(cost.of(32) < 1.1 * before);
  cost.observe(32, -1.0);  // a clock that is no clock
  cost.observe(0, 1.0);
  for (int rows = 2; rows <= kMaxTreeNodes; ++rows) CHECK(cost.of(rows) >= cost.of(rows - 1));
}

void test_measured_cost_is_kept() {
  StepCost cost;
  const std::vector<int> rows{1, 4, 16};
  const std::vector<double> seconds{0.010, 0.011, 0.023};
  const std::vector<double> slopes{1e-6, 1e-6, 3e-6};
  cost.fix(rows, seconds, slopes);
  CHECK(cost.fixed());
  const auto near = [](double a, double b) { return std::abs(a - b) < 1e-9; };
  CHECK(near(cost.of(1), 0.010) && near(cost.of(4), 0.011) && near(cost.of(10), 0.017));
  CHECK(near(cost.of(28), 0.035) && near(cost.of(300), cost.of(256)));
  CHECK(near(cost.of(1, 1000), 0.011) && near(cost.of(16, 1000), 0.026));
  cost.observe(16, 1.0);
  CHECK(near(cost.of(16), 0.023));
  cost.fix(std::vector<int>{1, 8}, std::vector<double>{0.02, 0.01}, std::vector<double>{0, 0});
  CHECK(cost.of(8) == 0.02);  // more rows never cost less
  CHECK_THROWS(cost.fix(rows, seconds, std::vector<double>{0.0}), InvalidArgument);
  CHECK_THROWS(cost.fix(std::vector<int>{4, 1}, std::vector<double>{1, 1}, slopes),
               InvalidArgument);
  const std::vector<double> bad{0.01, -1.0, 0.02};
  CHECK_THROWS(cost.fix(rows, bad, slopes), InvalidArgument);
  CHECK_THROWS(cost.fix({}, {}, {}), InvalidArgument);
}

void test_a_request_with_drafts_and_a_budget_by_cost() {
  HybridOptions options;
  options.max_candidate_nodes = 12;
  options.auto_budget = true;
  options.max_draft_nodes = 6;
  options.successors = 4;
  const auto drafter = std::make_shared<HybridDrafter>(options);
  SessionLimits limits;
  limits.max_seq_len = 300;
  limits.top_k = 4;
  SessionParams params;
  params.max_new_tokens = 200;
  Session session({1, 2, 3}, drafter, params, limits);
  std::vector<std::uint64_t> block(session.plan_bytes() / 8 + 8);
  std::vector<TokenId> output;
  std::size_t step = 0;
  while (!session.finished()) {
    session.plan(reinterpret_cast<unsigned char*>(block.data()), block.size() * 8);
    const TreeBuilder& tree = session.tree();
    output.clear();
    for (int row = 0; row < tree.size(); ++row) {
      const TokenId next = (tree.token(row) * 5 + 3) % 17;
      output.push_back(next);
      for (int k = 0; k < 4; ++k) output.push_back((next + k) % 17);
    }
    session.commit(output);
    CHECK(drafter->budgets().size() == ++step);
    CHECK(static_cast<int>(drafter->nodes().size()) == tree.n_verify() - 1);
  }
  TokenId token = 3;
  for (const TokenId got : session.output_tokens()) {
    token = (token * 5 + 3) % 17;
    CHECK(got == token);
  }
}

}  // namespace

int main() {
  test_keys_name_the_last_tokens();
  test_text_table_counts_and_forgets();
  test_long_paths_count_where_they_hold();
  test_acceptance_learns_who_is_right();
  test_more_tokens_than_a_node_holds();
  test_cost_follows_what_is_measured();
  test_measured_cost_is_kept();
  test_a_request_with_drafts_and_a_budget_by_cost();
}
