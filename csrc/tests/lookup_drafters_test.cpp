// Prompt lookup, token recycling and suffix decoding under sanitizers: every limit, several
// requests with one drafter, a long text. What they propose is compared with a reference in Python.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "check.h"
#include "ptd/prompt_lookup_drafter.h"
#include "ptd/session.h"
#include "ptd/suffix_drafter.h"
#include "ptd/token_recycling_drafter.h"

namespace {

using ptd::TokenId;

constexpr int kVocabulary = 37;
constexpr int kTopK = 8;
constexpr int kMaxSeqLen = 120;

TokenId next_token(TokenId before, TokenId last) {
  return (before * 7 + last * 3 + before * last) % kVocabulary;
}

// The row's next token and its successors: that token and the ids behind it; none now and then.
void append_row(std::vector<TokenId>& out, TokenId before, TokenId last, bool may_fail) {
  const TokenId next = next_token(before, last);
  const bool fails = may_fail && (before + last) % 5 == 0;
  out.push_back(fails ? ptd::kNoToken : next);
  for (int k = 0; k < kTopK; ++k) out.push_back(fails ? 12345 : (next + k) % kVocabulary);
}

std::vector<TokenId> plain(std::vector<TokenId> prompt, std::size_t n) {
  std::vector<TokenId> text = prompt;
  while (text.size() < prompt.size() + n && text.size() < kMaxSeqLen) {
    text.push_back(next_token(text.size() > 1 ? text[text.size() - 2] : 0, text.back()));
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

// Decodes against plain(); returns how many candidates were accepted.
std::int64_t decode(const std::vector<TokenId>& prompt,
                    const std::shared_ptr<ptd::Drafter>& drafter, int max_new_tokens,
                    int max_nodes = ptd::kMaxTreeNodes, int max_path = 64) {
  ptd::SessionParams params;
  params.max_new_tokens = max_new_tokens;
  ptd::Session session(prompt, drafter, params,
                       {kMaxSeqLen, max_path, kTopK, max_nodes, kVocabulary, {}});
  if (drafter->needs().prompt_outputs && prompt.size() > 1) {
    std::vector<TokenId> outputs;
    for (std::size_t i = 0; i + 1 < prompt.size(); ++i) {
      append_row(outputs, i > 0 ? prompt[i - 1] : 0, prompt[i], true);
    }
    session.observe_prompt(0, outputs);
  }
  std::vector<std::uint64_t> block(session.plan_bytes() / sizeof(std::uint64_t));
  while (!session.finished()) {
    session.plan(reinterpret_cast<unsigned char*>(block.data()), session.plan_bytes());
    const auto& tree = session.tree();
    CHECK(tree.size() <= std::min(max_nodes, 1 + drafter->needs().max_nodes));
    std::vector<TokenId> output;
    std::vector<bool> read = {true};  // rows whose path is the output's
    const auto committed = session.tokens();
    const TokenId before_root = committed.size() > 1 ? committed[committed.size() - 2] : 0;
    append_row(output, before_root, tree.token(0), false);
    for (int row = 1; row < tree.size(); ++row) {
      const auto parent = static_cast<std::size_t>(tree.parent(row));
      const TokenId expected = output[parent * (1 + kTopK)];
      read.push_back(read[parent] && tree.token(row) == expected);
      append_row(output, tree.token(tree.parent(row)), tree.token(row), !read.back());
    }
    session.commit(output);
  }
  const auto tokens = session.output_tokens();
  CHECK(std::vector<TokenId>(tokens.begin(), tokens.end()) ==
        plain(prompt, static_cast<std::size_t>(max_new_tokens)));
  return session.stats().accepted;
}

const std::vector<std::vector<TokenId>> kPrompts = {{3, 9, 11, 3}, {5}, {0, 0}, {3, 9, 11, 3}};

void equal_plain_under_every_limit(const std::shared_ptr<ptd::Drafter>& drafter) {
  for (const auto& prompt : kPrompts) {
    for (const int max_nodes : {1, 2, 5, 256}) {
      for (const int max_path : {1, 3, 64}) decode(prompt, drafter, 200, max_nodes, max_path);
    }
  }
}

void every_drafter_equals_plain() {
  for (const int n : {1, 3, 64}) {
    equal_plain_under_every_limit(
        std::make_shared<ptd::PromptLookupDrafter>(ptd::PromptLookupOptions{n, n}));
    for (const bool flag : {false, true}) {
      equal_plain_under_every_limit(std::make_shared<ptd::TokenRecyclingDrafter>(
          ptd::TokenRecyclingOptions{n, std::min(n, kTopK), flag}));
      equal_plain_under_every_limit(std::make_shared<ptd::SuffixDrafter>(
          ptd::SuffixOptions{n, std::max(n, 2), 4.0, 0.0, flag, 30 * n}));
    }
  }
}

void candidates_are_accepted() {
  // The output is one token over and over.
  const auto accepted = [](std::shared_ptr<ptd::Drafter> drafter) {
    return decode({0, 0}, drafter, 100);
  };
  CHECK(accepted(std::make_shared<ptd::PromptLookupDrafter>(ptd::PromptLookupOptions{})) > 80);
  CHECK(accepted(std::make_shared<ptd::TokenRecyclingDrafter>(ptd::TokenRecyclingOptions{})) > 50);
  CHECK(accepted(std::make_shared<ptd::SuffixDrafter>(ptd::SuffixOptions{})) > 80);
}

struct Next {
  TokenId token;
  int count;
  std::ptrdiff_t last;  // where it followed last
};

// By searching the text: how often its last `length` tokens occur, and what follows them, in the
// order that the tree promises.
std::pair<int, std::vector<Next>> searched(const std::vector<TokenId>& text, int length) {
  int count = 0;
  std::vector<Next> found;
  for (auto at = text.begin(); text.end() - at >= length; ++at) {
    if (!std::equal(text.end() - length, text.end(), at)) continue;
    ++count;
    if (text.end() - at == length) continue;
    const TokenId token = at[length];
    auto next = std::find_if(found.begin(), found.end(),
                             [&](const Next& other) { return other.token == token; });
    if (next == found.end()) next = found.insert(found.end(), {token, 0, 0});
    ++next->count;
    next->last = at - text.begin();
  }
  std::sort(found.begin(), found.end(), [](const Next& a, const Next& b) {
    return a.count != b.count ? a.count > b.count : a.last > b.last;
  });
  return {count, found};
}

// Over few tokens, with and without repetitions, every kind of move happens.
void the_suffix_tree_counts_what_is_in_the_text() {
  using Place = ptd::SuffixTree::Place;
  for (const int depth : {2, 5, 9}) {
    ptd::SuffixTree tree(depth);
    for (const int tokens : {3, 9}) {
      tree.clear();
      std::vector<TokenId> text;
      std::uint32_t random = 7;
      for (int i = 0; i < 400; ++i) {
        random = random * 1664525u + 1013904223u;
        text.push_back(i % 100 < 70 ? static_cast<TokenId>((random >> 24) % tokens) : 0);
        tree.append(text.back());
        const int longest = std::min(depth, i + 1);
        CHECK(tree.open_suffixes() == longest);
        for (int length = 1; length <= longest; ++length) {
          const Place place = tree.suffix(length);
          const auto expected = searched(text, length);
          CHECK(tree.count(place) == expected.first);
          Place walked;
          for (auto at = text.end() - length; at != text.end(); ++at) {
            CHECK(tree.advance(walked, *at));
          }
          CHECK(walked.node == place.node && walked.above == 0);
          std::size_t i_next = 0;
          tree.for_each_next(place, [&](Place next, TokenId token) {
            CHECK(i_next < expected.second.size());
            CHECK(token == expected.second[i_next].token);
            CHECK(tree.count(next) == expected.second[i_next].count);
            ++i_next;
            return true;
          });
          CHECK(i_next == (length < depth ? expected.second.size() : 0));
        }
      }
    }
  }
}

void the_suffix_tree_is_bounded_and_its_memory_used_again() {
  ptd::SuffixTree tree(64);
  std::size_t capacity = 0;
  for (int round = 0; round < 4; ++round) {
    tree.clear();
    // Without folding, the copies would have a node for each token of each suffix.
    for (int copy = 0; copy < 3; ++copy) {
      for (int i = 0; i < 1000; ++i) {
        tree.append((i * i + i / 7) % 997);
        CHECK(tree.node_count() <= 1 + 2 * tree.text_size());
      }
    }
    if (round == 1) capacity = tree.capacity();
    CHECK(round < 2 || tree.capacity() == capacity);
  }
}

}  // namespace

int main() {
  every_drafter_equals_plain();
  candidates_are_accepted();
  the_suffix_tree_counts_what_is_in_the_text();
  the_suffix_tree_is_bounded_and_its_memory_used_again();
}
