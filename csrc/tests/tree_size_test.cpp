// TreeSize: sizes by hand, and what it comes to in texts of different kinds.
#include "ptd/tree_size.h"

#include <vector>

#include "check.h"

namespace {

using ptd::Span;
using ptd::StepCost;
using ptd::TreeSize;

// One row 1 s, each further one `per_row`.
StepCost linear_cost(double per_row) {
  StepCost cost;
  cost.fix(std::vector<int>{1, 101}, std::vector<double>{1.0, 1.0 + 100.0 * per_row},
           std::vector<double>{0.0, 0.0});
  return cost;
}

int choose(TreeSize& size, const std::vector<float>& probabilities, const StepCost& cost) {
  return size.choose(Span<const float>(probabilities), 0, 0, cost);
}

void test_the_first_step_takes_the_best_ratio() {
  TreeSize size;
  // (1 + sum) / cost, a row's worth in later steps (0.01) included:
  // 1, 1.61 / 1.1, 1.92 / 1.2 = 1.6, 1.98 / 1.3
  CHECK(choose(size, {0.6f, 0.3f, 0.05f}, linear_cost(0.1)) == 2);
  CHECK(choose(size, {0.6f, 0.3f, 0.05f}, linear_cost(10.0)) == 0);
  CHECK(choose(size, {}, linear_cost(0.1)) == 0);
  // 1.9 / 1.06 > 1.95 / 1.09, but 1.92 / 1.06 < 1.98 / 1.09.
  TreeSize cheap;
  CHECK(choose(cheap, {0.6f, 0.3f, 0.05f}, linear_cost(0.03)) == 3);
}

void test_free_rows_are_all_taken() {
  TreeSize size;
  const std::vector<float> many(ptd::kMaxTreeNodes - 1, 1e-4f);
  CHECK(choose(size, many, linear_cost(0.0)) == ptd::kMaxTreeNodes - 1);
}

void test_other_rows_count() {
  // A step up in cost behind four rows.
  StepCost cost;
  cost.fix(std::vector<int>{1, 4, 5, 8}, std::vector<double>{1.0, 1.0, 3.0, 3.0},
           std::vector<double>{0.0, 0.0, 0.0, 0.0});
  const std::vector<float> nodes(6, 0.2f);
  TreeSize alone;
  CHECK(alone.choose(Span<const float>(nodes), 0, 0, cost) == 3);
  TreeSize besides;
  CHECK(besides.choose(Span<const float>(nodes), 2, 0, cost) == 1);
}

void test_an_uncertain_step_takes_what_suits_the_text() {
  const StepCost cost = linear_cost(0.04);
  const std::vector<float> good{0.7f, 0.5f, 0.3f, 0.2f, 0.15f, 0.1f, 0.08f, 0.01f};
  const std::vector<float> poor{0.05f, 0.04f, 0.03f, 0.02f, 0.02f, 0.02f, 0.02f, 0.02f};
  TreeSize size;
  const int alone = choose(size, poor, cost);
  int usual = 0;
  size.begin();
  for (int step = 0; step < 30; ++step) {
    usual = choose(size, good, cost);
    size.observe(2.0, 2, 3, cost.of(1 + usual));
  }
  CHECK(usual > alone);
  CHECK(choose(size, poor, cost) >= usual - 1);
  CHECK(choose(size, {0.05f, 0.04f}, cost) == 2);  // never more than there are
}

void test_broken_promises_end_in_plain_decoding() {
  const StepCost cost = linear_cost(0.05);
  const std::vector<float> promised(10, 0.3f);
  TreeSize size;
  CHECK(choose(size, promised, cost) == 10);
  for (int step = 0; step < 60; ++step) {
    const int n = choose(size, promised, cost);
    size.observe(0.3 * n, 0, 1, cost.of(1 + n));
  }
  CHECK(choose(size, promised, cost) == 0);
  size.begin();
  CHECK(choose(size, promised, cost) == 10);
}

void test_a_little_too_much_promised_is_forgiven() {
  const StepCost cost = linear_cost(0.08);
  const std::vector<float> promised(10, 0.15f);
  TreeSize size;
  for (int step = 0; step < 60; ++step) {
    const int n = choose(size, promised, cost);
    CHECK(n == 10);
    size.observe(0.15 * n, step % 2, 1 + step % 2, cost.of(1 + n));  // a third of it
  }
}

void test_promises_that_are_surpassed_are_believed_more() {
  const StepCost cost = linear_cost(0.1);
  const std::vector<float> promised(20, 0.08f);
  const auto after = [&](int accepted) {  // 1.4 tokens a second
    TreeSize size;
    for (int step = 0; step < 30; ++step) {
      size.observe(2.0, accepted, 1 + accepted, (1 + accepted) / 1.4);
    }
    return choose(size, promised, cost);
  };
  CHECK(after(2) == 0);   // 0.09 for a row that costs 0.14
  CHECK(after(5) == 20);  // twice as much, not more: 0.17
}

}  // namespace

int main() {
  test_the_first_step_takes_the_best_ratio();
  test_free_rows_are_all_taken();
  test_other_rows_count();
  test_an_uncertain_step_takes_what_suits_the_text();
  test_broken_promises_end_in_plain_decoding();
  test_a_little_too_much_promised_is_forgiven();
  test_promises_that_are_surpassed_are_believed_more();
}
