#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "ptd/cpu/kernels.h"
#include "ptd/rng.h"

namespace {

using ptd::cpu::Kernels;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kAlmostOne = 1.0f - 0x1p-24f;

struct Filter {
  float top_k = 0, top_p = 1, min_p = 0, successor_top_p = 0;
  bool on() const { return top_k > 0 || top_p < 1 || min_p > 0; }
};

std::size_t sz(long long n) { return static_cast<std::size_t>(n); }

void each_kernel_set(const std::function<void(const Kernels&)>& body) {
  for (int isa = 0; isa < ptd::cpu::kNumIsas; ++isa) {
    if (!ptd::cpu::isa_unavailable(static_cast<ptd::cpu::Isa>(isa)).empty()) continue;
    body(ptd::cpu::kernels(static_cast<ptd::cpu::Isa>(isa)));
  }
}

// Rows of logits, and what select makes of them. `next` is [rows, 1 + successors].
struct Batch {
  int vocab = 0;
  std::vector<float> logits, temperature, uniform;
  std::vector<std::int32_t> next;
  Filter filter;
  int successors = 0;

  int rows() const { return static_cast<int>(temperature.size()); }
  void add(const std::vector<float>& row, float heat, float u, std::int32_t greedy = 0) {
    vocab = static_cast<int>(row.size());
    logits.insert(logits.end(), row.begin(), row.end());
    temperature.push_back(heat);
    uniform.push_back(u);
    next.push_back(greedy);
    next.resize(next.size() + sz(successors), -7);
  }
  // The threads of a team one after the other, in scratch of exactly the promised size; behind
  // every row lies NaN.
  std::vector<std::int32_t> run(const Kernels& k, int team = 1) const {
    const int stride = vocab + 19;
    std::vector<float> memory(sz(rows()) * sz(stride), kNaN);
    for (int i = 0; i < rows(); ++i) {
      std::copy_n(logits.begin() + i * vocab, vocab, memory.begin() + i * stride);
    }
    const float sampling[4] = {filter.top_k, filter.top_p, filter.min_p, filter.successor_top_p};
    std::vector<std::int32_t> out = next;
    ptd::cpu::SelectArgs args = {
        rows(),   vocab,       memory.data(), stride,         temperature.data(), uniform.data(),
        sampling, filter.on(), out.data(),    1 + successors, successors,         nullptr};
    const std::int64_t bytes = ptd::cpu::select_scratch_bytes(args, team);
    CHECK(bytes % 64 == 0);
    const std::unique_ptr<void, decltype(&std::free)> scratch(
        std::aligned_alloc(64, sz(std::max<std::int64_t>(bytes, 64))), &std::free);
    std::memset(scratch.get(), 0xff, sz(bytes));
    args.scratch = static_cast<unsigned char*>(scratch.get());
    for (int i = 0; i < team; ++i) k.select(args, {i, team});
    return out;
  }
};

std::int32_t draw(const Kernels& k, const std::vector<float>& logits, float heat, float uniform,
                  Filter filter = {}) {
  Batch batch;
  batch.filter = filter;
  batch.add(logits, heat, uniform);
  return batch.run(k)[0];
}

// The ids from the largest logit down, equal ones by id.
std::vector<int> ranked(const std::vector<float>& logits) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return logits[sz(a)] > logits[sz(b)]; });
  return order;
}

// The masses that the filters leave, word for word as ptd_engine/kernels/ops.py puts it.
std::vector<double> masses(const std::vector<float>& logits, float heat, Filter filter) {
  const std::vector<int> order = ranked(logits);
  const auto peak = static_cast<double>(logits[sz(order[0])]);
  std::vector<double> sorted;
  for (const int id : order) {
    const auto x = static_cast<double>(logits[sz(id)]);
    sorted.push_back(std::exp((x - peak) / static_cast<double>(heat)));
  }
  for (std::size_t rank = 0; rank < sorted.size(); ++rank) {
    if (filter.top_k > 0 && static_cast<float>(rank) >= filter.top_k) sorted[rank] = 0;
  }
  const double total = std::accumulate(sorted.begin(), sorted.end(), 0.0);
  double before = 0;
  for (std::size_t rank = 0; rank < sorted.size(); ++rank) {
    const double mass = sorted[rank];
    const auto top_p = static_cast<double>(filter.top_p);
    if (top_p < 1 && rank > 0 && before >= top_p * total) sorted[rank] = 0;
    before += mass;
  }
  std::vector<double> out(logits.size());
  for (std::size_t rank = 0; rank < sorted.size(); ++rank) {
    const bool kept = sorted[rank] >= static_cast<double>(filter.min_p) * sorted[0];
    out[sz(order[rank])] = kept ? sorted[rank] : 0;
  }
  return out;
}

// Draws at the middle of the ids' shares of the mass (of many ids: of some), and at both ends.
void check_inverse_cdf(const Kernels& k, const std::vector<float>& logits, float heat,
                       Filter filter) {
  const std::vector<double> mass = masses(logits, heat, filter);
  const double total = std::accumulate(mass.begin(), mass.end(), 0.0);
  Batch batch;
  batch.filter = filter;
  std::vector<std::int32_t> expected;
  double before = 0;
  for (std::size_t id = 0; id < mass.size(); ++id) {
    if (mass[id] > 1e-5 * total && (id < 20 || id % 37 == 0 || id + 1 == mass.size())) {
      batch.add(logits, heat, static_cast<float>((before + mass[id] / 2) / total));
      expected.push_back(static_cast<std::int32_t>(id));
    }
    before += mass[id];
  }
  CHECK(batch.run(k) == expected);
  CHECK(mass[sz(draw(k, logits, heat, 0.0f, filter))] > 0);
  CHECK(mass[sz(draw(k, logits, heat, kAlmostOne, filter))] > 0);
}

std::vector<float> random_logits(int n, float spread, std::mt19937& rng) {
  std::vector<float> logits;
  for (int i = 0; i < n; ++i) {
    // A sum of uniform numbers, to have a long tail; the distribution does not matter.
    float x = 0;
    for (int j = 0; j < 4; ++j) x += static_cast<float>(rng()) * 0x1p-32f - 0.5f;
    logits.push_back(spread * x * x * x * 8);
  }
  return logits;
}

const std::vector<Filter>& filters() {
  static const std::vector<Filter> all = {
      {},           {1, 1, 0},        {3, 1, 0},          {40, 1, 0},    {100000, 1, 0},
      {0, 0.9f, 0}, {0, 1e-9f, 0},    {0, 0.999f, 0},     {0, 1, 0.05f}, {0, 1, 1},
      {3, 0.8f, 0}, {40, 0.5f, 0.1f}, {40, 0.95f, 0.01f}, {7, 1, 0.2f},  {0, 0.7f, 0.1f}};
  return all;
}

void draws_invert_the_cumulative_masses() {
  each_kernel_set([](const Kernels& k) {
    std::mt19937 rng(1);
    for (const int vocab : {1, 2, 8, 15, 16, 17, 100, 511, 512, 513, 1500}) {
      for (const float spread : {0.0f, 0.5f, 8.0f, 60.0f}) {
        const std::vector<float> logits = random_logits(vocab, spread, rng);
        for (const Filter& filter : filters()) check_inverse_cdf(k, logits, 0.8f, filter);
      }
      const std::vector<float> logits = random_logits(vocab, 8, rng);
      check_inverse_cdf(k, logits, 0.3f, {});
      check_inverse_cdf(k, logits, 30.0f, {0, 0.6f, 0});
    }
  });
}

// Rising logits: the first id with any mass is the worst that the filter keeps, and a uniform of 0
// draws it however small its mass is.
void filters_end_exactly_where_they_should() {
  each_kernel_set([](const Kernels& k) {
    constexpr int kVocab = 1000;
    for (const float step : {0.0005f, 0.02f, 0.5f}) {
      std::vector<float> logits;
      for (int i = 0; i < kVocab; ++i) logits.push_back(static_cast<float>(i / 2) * step - 3);
      const auto first = [&](Filter filter) {
        const auto mass = masses(logits, 1.0f, filter);
        const auto at =
            std::find_if(mass.begin(), mass.end(), [](double m) { return m > 0x1p-126; });
        return static_cast<std::int32_t>(at - mass.begin());
      };
      for (const float top_k : {1.0f, 2.0f, 3.0f, 16.0f, 33.0f, 50.0f, 51.0f, 333.0f, 999.0f}) {
        for (const float top_p : {1.0f, 0.999f, 0.7f, 0.1f}) {
          const Filter filter = {top_k, top_p, 0};
          CHECK(draw(k, logits, 1.0f, 0.0f, filter) == first(filter));
        }
      }
      for (const float top_p : {0.0f, 0.1f, 0.5f, 0.9f, 0.99f, 0.9999f}) {
        const Filter filter = {0, top_p, 0};
        CHECK(draw(k, logits, 1.0f, 0.0f, filter) == first(filter));
      }
      for (const float min_p : {0.9f, 0.1f, 1e-3f, 1e-6f}) {
        const Filter filter = {0, 1, min_p};
        CHECK(draw(k, logits, 1.0f, 0.0f, filter) == first(filter));
      }
    }
  });
}

void ties_go_to_the_lowest_ids() {
  each_kernel_set([](const Kernels& k) {
    const auto kept = [&](const std::vector<float>& logits, Filter filter) {
      std::vector<std::int32_t> ids;
      for (int i = 0; i < 256; ++i) {
        ids.push_back(draw(k, logits, 1.0f, (static_cast<float>(i) + 0.5f) / 256, filter));
      }
      ids.erase(std::unique(ids.begin(), ids.end()), ids.end());  // draws rise with the uniform
      return ids;
    };
    using Ids = std::vector<std::int32_t>;
    CHECK(kept({3, 3, 0}, {1, 1, 0}) == Ids({0}));
    CHECK(kept({0, 3, 3, 3}, {2, 1, 0}) == Ids({1, 2}));
    CHECK(kept({-0.0f, 0.0f, -0.0f}, {1, 1, 0}) == Ids({0}));
    CHECK(kept({0.0f, -0.0f, 0.0f}, {2, 1, 0}) == Ids({0, 1}));
    CHECK(kept({-1, 0.0f, -0.0f, 0.0f}, {2, 1, 0}) == Ids({1, 2}));
    CHECK(kept(std::vector<float>(8, 1.5f), {0, 0.5f, 0}) == Ids({0, 1, 2, 3}));
    CHECK(kept(std::vector<float>(8, 1.5f), {0, 0.51f, 0}) == Ids({0, 1, 2, 3, 4}));
    CHECK(kept(std::vector<float>(8, 1.5f), {6, 0.5f, 0}) == Ids({0, 1, 2}));
    CHECK(kept(std::vector<float>(8, -4), {0, 1, 1}) == Ids({0, 1, 2, 3, 4, 5, 6, 7}));
    CHECK(kept(std::vector<float>(2000, 1), {1, 1, 0}) == Ids({0}));
    CHECK(kept(std::vector<float>(2000, 1), {0, 0.0009f, 0}) == Ids({0, 1}));
  });
}

void cold_rows_take_the_largest() {
  each_kernel_set([](const Kernels& k) {
    for (const float heat : {1e-45f, 1e-38f, 1e-9f, 1e-6f, 3e-4f}) {
      for (const float u : {0.0f, 0.5f, kAlmostOne}) {
        for (const Filter& filter : filters()) {
          CHECK(draw(k, {9, 10, -100, -kInf, -3e38f}, heat, u, filter) == 1);
          CHECK(draw(k, {-3e38f, 3e38f, 1}, heat, u, filter) == 1);
        }
      }
    }
  });
}

void an_id_without_mass_is_never_drawn() {
  each_kernel_set([](const Kernels& k) {
    for (const int vocab : {20, 600, 1100}) {
      std::vector<float> logits(sz(vocab), -kInf);
      logits[11] = logits[13] = 2.0f;
      logits[14] = -200.0f;
      for (const Filter& filter : {Filter{}, Filter{5, 1, 0}, Filter{0, 0.9f, 0}}) {
        CHECK(draw(k, logits, 1.0f, 0.0f, filter) == 11);
        CHECK(draw(k, logits, 1.0f, 0.49f, filter) == 11);
        CHECK(draw(k, logits, 1.0f, 0.5f, filter) == 13);
        CHECK(draw(k, logits, 1.0f, kAlmostOne, filter) == 13);
        CHECK(draw(k, logits, 1.0f, 1.0f, filter) == 13);  // out of range, but harmless
      }
    }
  });
}

void greedy_and_broken_rows_keep_what_they_hold() {
  each_kernel_set([](const Kernels& k) {
    for (const bool filtered : {false, true}) {
      Batch batch;
      if (filtered) batch.filter = {2, 0.9f, 0};
      batch.add({1, 5, 2}, 0.0f, 0.9f, 17);
      batch.add({1, kNaN, 2}, 1.0f, 0.9f, -1);
      batch.add({1, 5, kInf}, 1.0f, 0.9f, -1);
      batch.add({50, 5, 2}, 1.0f, 0.9f, 2);
      CHECK(batch.run(k) == std::vector<std::int32_t>({17, -1, -1, 0}));
    }
  });
}

void successors_are_the_largest_in_order() {
  each_kernel_set([](const Kernels& k) {
    std::mt19937 rng(2);
    for (const int vocab : {2, 3, 16, 17, 40, 333, 2000}) {
      for (const int successors : {1, 2, 3, 8, 20, 31, 300}) {
        if (successors >= vocab) continue;
        Batch batch;
        batch.successors = successors;
        std::vector<std::int32_t> expected;
        for (int kind = 0; kind < 5; ++kind) {
          std::vector<float> row = random_logits(vocab, 9, rng);
          for (std::size_t i = 0; i < row.size(); ++i) {
            if (kind == 1) row[i] = std::floor(row[i]);  // many ties
            if (kind == 2) row[i] = static_cast<float>(i);
            if (kind == 3) row[i] = i % 3 == 0 ? -0.0f : 0.0f;
            if (kind == 4 && i % 7 != 1) row[i] = -kInf;
          }
          const std::vector<int> order = ranked(row);
          // Also where the row itself is greedy, or has failed.
          const std::int32_t greedy = kind == 4 ? -1 : order[0];
          batch.add(row, kind == 2 ? 1e-9f : 0.0f, 0.5f, greedy);
          expected.push_back(greedy);
          expected.insert(expected.end(), order.begin(), order.begin() + successors);
        }
        CHECK(batch.run(k) == expected);
        CHECK(batch.run(k, 2) == expected && batch.run(k, 4) == expected);
      }
    }
    // A row with NaN still names ids of the vocabulary.
    Batch batch;
    batch.successors = 3;
    batch.add({kNaN, 1, kNaN, 5, kNaN, 2, kNaN}, 1.0f, 0.5f, -1);
    for (const auto id : batch.run(k)) CHECK(id >= -1 && id < 7);
  });
}

void successors_end_where_their_mass_reaches_top_p() {
  each_kernel_set([](const Kernels& k) {
    std::mt19937 rng(4);
    constexpr int kListed = 6;
    for (const int vocab : {7, 16, 1037}) {
      for (const float top_p : {0.05f, 0.4f, 0.8f, 0.97f, 1.0f}) {
        Batch batch;
        batch.successors = kListed;
        batch.filter.successor_top_p = top_p;
        std::vector<std::int32_t> expected;
        for (int i = 0; i < 9; ++i) {
          std::vector<float> row = random_logits(vocab, 40, rng);
          const std::vector<double> mass = masses(row, 1.0f, {});
          const double total = std::accumulate(mass.begin(), mass.end(), 0.0);
          // The row's own temperature has no part in it.
          batch.add(row, 0.0f, 0.5f, 5);
          expected.push_back(5);
          double before = 0;
          for (int rank = 0; rank < kListed; ++rank) {
            const int id = ranked(row)[sz(rank)];
            const bool beyond = rank > 0 && before >= static_cast<double>(top_p) * total;
            expected.push_back(beyond && top_p < 1 ? -1 : id);
            before += mass[sz(id)];
          }
        }
        CHECK(batch.run(k) == expected && batch.run(k, 4) == expected);
      }
    }
  });
}

void a_row_depends_on_nothing_but_itself() {
  each_kernel_set([](const Kernels& k) {
    std::mt19937 rng(3);
    for (const Filter& filter : filters()) {
      Batch batch;
      batch.filter = filter;
      batch.successors = 2;
      std::vector<std::int32_t> alone;
      for (int i = 0; i < 7; ++i) {
        const std::vector<float> row = random_logits(1037, 12, rng);
        const float u = static_cast<float>(rng()) * 0x1p-33f;
        Batch one;
        one.filter = filter;
        one.successors = 2;
        for (Batch* to : {&batch, &one}) to->add(row, i == 2 ? 0.0f : 0.9f, u, 3);
        const auto result = one.run(k);
        alone.insert(alone.end(), result.begin(), result.end());
      }
      for (const int team : {1, 2, 4, 9}) CHECK(batch.run(k, team) == alone);
    }
  });
}

// Pearson's statistic of 20,000 draws from eight ids; 33 is exceeded once in 40,000 trials.
void draws_have_the_processed_law() {
  const std::vector<float> logits = {1.0f, -0.5f, 2.0f, 0.3f, 2.0f, -1.2f, 0.9f, 0.0f};
  constexpr int kDraws = 20000;
  each_kernel_set([&](const Kernels& k) {
    for (const Filter& filter : {Filter{}, Filter{3, 1, 0}, Filter{0, 0.8f, 0}, Filter{0, 1, 0.1f},
                                 Filter{6, 0.9f, 0.2f}}) {
      Batch batch;
      batch.filter = filter;
      for (int i = 0; i < kDraws; ++i) batch.add(logits, 0.8f, ptd::philox_uniform(5, i));
      std::vector<int> drawn(logits.size());
      for (const auto id : batch.run(k)) ++drawn.at(sz(id));
      const std::vector<double> mass = masses(logits, 0.8f, filter);
      const double total = std::accumulate(mass.begin(), mass.end(), 0.0);
      double statistic = 0;
      for (std::size_t id = 0; id < mass.size(); ++id) {
        const double expected = kDraws * mass[id] / total;
        if (expected == 0) CHECK(drawn[id] == 0);
        if (expected > 0) statistic += std::pow(drawn[id] - expected, 2) / expected;
      }
      CHECK(statistic < 33);
    }
  });
}

}  // namespace

int main() {
  draws_invert_the_cumulative_masses();
  filters_end_exactly_where_they_should();
  ties_go_to_the_lowest_ids();
  cold_rows_take_the_largest();
  an_id_without_mass_is_never_drawn();
  greedy_and_broken_rows_keep_what_they_hold();
  successors_are_the_largest_in_order();
  successors_end_where_their_mass_reaches_top_p();
  a_row_depends_on_nothing_but_itself();
  draws_have_the_processed_law();
}
