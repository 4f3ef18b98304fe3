// Lookahead and Self-Draft over a toy model (the next token is a function of the last two): plain
// decoding's output under every limit, bounded pools, and no memory touched that is not theirs.
#include <memory>
#include <utility>
#include <vector>

#include "check.h"
#include "ptd/lookahead_drafter.h"
#include "ptd/self_draft_drafter.h"
#include "ptd/session.h"

namespace {

using ptd::Span;
using ptd::TokenId;

TokenId toy_next(TokenId before, TokenId last) {
  return (before * 7 + last * 3 + before * last) % 37;
}

struct Run {
  std::vector<TokenId> tokens;
  ptd::SessionStats stats;
};

Run decode(const std::vector<TokenId>& prompt, std::shared_ptr<ptd::Drafter> drafter,
           int max_new_tokens, int max_seq_len, int max_nodes, std::vector<TokenId> stop_ids) {
  ptd::SessionParams params;
  params.max_new_tokens = max_new_tokens;
  params.stop_ids = std::move(stop_ids);
  ptd::Session session(prompt, std::move(drafter), params, {max_seq_len, 64, 0, max_nodes, 37, {}});
  std::vector<std::uint64_t> block(session.plan_bytes() / sizeof(std::uint64_t));
  std::vector<TokenId> output;
  while (!session.finished()) {
    session.plan(reinterpret_cast<unsigned char*>(block.data()),
                 block.size() * sizeof(std::uint64_t));
    const auto& tree = session.tree();
    CHECK(tree.size() <= max_nodes);
    output.resize(static_cast<std::size_t>(tree.size()));
    for (int row = 0; row < tree.size(); ++row) {
      const auto committed = session.tokens();
      TokenId before = committed.size() > 1 ? committed[committed.size() - 2] : 0;
      if (row > 0) before = tree.token(tree.parent(row));
      CHECK(session.kv_len() + tree.depth(row) < max_seq_len);
      output[static_cast<std::size_t>(row)] = toy_next(before, tree.token(row));
    }
    session.commit(output);
  }
  const auto tokens = session.output_tokens();
  return {{tokens.begin(), tokens.end()}, session.stats()};
}

// Returns how many candidates were accepted in all.
std::int64_t check_equals_plain(const std::shared_ptr<ptd::Drafter>& drafter) {
  std::int64_t accepted = 0;
  for (const auto& prompt : {std::vector<TokenId>{3, 9, 11, 3}, {5}, {1}}) {
    for (const int max_nodes : {2, 20, ptd::kMaxTreeNodes}) {
      for (const int max_seq_len : {12, 40, 400}) {
        for (const auto& stops : {std::vector<TokenId>{}, {7, 30}}) {
          const auto plain = decode(prompt, std::make_shared<ptd::AutoregressiveDrafter>(), 120,
                                    max_seq_len, max_nodes, stops);
          const auto got = decode(prompt, drafter, 120, max_seq_len, max_nodes, stops);
          CHECK(got.tokens == plain.tokens);
          accepted += got.stats.accepted;
        }
      }
    }
  }
  return accepted;
}

void lookahead_equals_plain() {
  std::int64_t accepted = 0;
  for (const int level : {3, 5, 7}) {
    for (const int window : {1, 2, 15}) {
      for (const bool option : {false, true}) {
        ptd::LookaheadOptions options;
        options.level = level;
        options.window = window;
        options.prompt_ngrams = options.faithful = option;
        options.pool_max_keys = option ? 37 : 4;
        auto drafter = std::make_shared<ptd::LookaheadDrafter>(options);
        accepted += check_equals_plain(drafter);
        CHECK(drafter->pool().key_count() <= options.pool_max_keys);
      }
    }
  }
  CHECK(accepted > 1000);
}

void self_draft_equals_plain() {
  std::int64_t accepted = 0;
  for (const int length : {3, 6}) {
    for (const int branches : {1, 6}) {
      for (const bool option : {false, true}) {
        ptd::SelfDraftOptions options;
        options.length = length;
        options.branches = branches;
        options.ngram = length - 1;
        options.faithful = option;
        if (option) {
          const auto n = static_cast<std::size_t>(options.ngram);
          for (TokenId key = 0; key < 37; ++key) options.corpus[key].assign(2 * n, key);
        }
        options.pool_max_keys = option ? 37 : 4;
        auto drafter = std::make_shared<ptd::SelfDraftDrafter>(options);
        accepted += check_equals_plain(drafter);
        CHECK(drafter->pool().key_count() <= options.pool_max_keys);
      }
    }
  }
  CHECK(accepted > 400);
}

std::vector<TokenId> tokens_of(Span<const TokenId> tokens) {
  return {tokens.begin(), tokens.end()};
}

void the_pool_is_least_recently_used_twice() {
  ptd::NgramPool pool(2, 2, 2);
  const auto insert = [&pool](TokenId key, std::vector<TokenId> ngram) { pool.insert(key, ngram); };
  insert(1, {10, 11});
  insert(1, {20, 21});
  insert(1, {10, 11});  // known: now the newest
  CHECK((tokens_of(pool.find(1)) == std::vector<TokenId>{20, 21, 10, 11}));
  insert(1, {30, 31});
  CHECK((tokens_of(pool.find(1)) == std::vector<TokenId>{10, 11, 30, 31}));
  insert(2, {1, 1});
  CHECK(pool.retrieve(1).size() == 4);
  insert(3, {1, 1});  // 2 is the least recently used key
  CHECK(pool.find(2).empty() && pool.key_count() == 2);
  CHECK((pool.keys_by_age() == std::vector<TokenId>{1, 3}));
  pool.clear();
  CHECK(pool.key_count() == 0 && pool.retrieve(1).empty());
  insert(1, {7, 7});
  CHECK((tokens_of(pool.find(1)) == std::vector<TokenId>{7, 7}));
}

void settings_out_of_range_are_refused() {
  CHECK_THROWS(ptd::NgramPool(0, 1, 1), ptd::InvalidArgument);
  ptd::LookaheadOptions lookahead;
  lookahead.level = 17;
  CHECK_THROWS(ptd::LookaheadDrafter{lookahead}, ptd::InvalidArgument);
  ptd::SelfDraftOptions self_draft;
  self_draft.corpus[1] = {1, 2, 3};
  CHECK_THROWS(ptd::SelfDraftDrafter{self_draft}, ptd::InvalidArgument);
  self_draft.corpus[1] = {1, 2, -1, 4};  // would fail every request that comes to it
  CHECK_THROWS(ptd::SelfDraftDrafter{self_draft}, ptd::InvalidArgument);
}

}  // namespace

int main() {
  the_pool_is_least_recently_used_twice();
  lookahead_equals_plain();
  self_draft_equals_plain();
  settings_out_of_range_are_refused();
  return 0;
}
