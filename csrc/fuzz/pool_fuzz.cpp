// The candidate pool: any interleaving of merging draft trees, retrieving and clearing, over small
// vocabularies, so that keys collide, are trimmed and evicted. What must hold after every call is
// checked here; that it holds the same as the reference in Python, in tests/fuzz/test_pool_twin.py.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "input.h"
#include "ptd/candidate_pool.h"

namespace {

using ptd::kNoNode;
using ptd::NodeId;
using ptd::TokenId;

class Run {
 public:
  explicit Run(ptd_fuzz::Input& input)
      : input_(input),
        vocab_(input.between(1, 40)),
        nodes_per_key_(input.between(1, 20)),
        max_keys_(input.between(1, 9)),
        width_(input.between(1, 5)),
        depth_(input.between(1, 8)),
        max_nodes_(input.between(1, 40)),
        pool_(nodes_per_key_, max_keys_) {
    std::vector<TokenId> eos;
    if (input.one_in(3)) eos.push_back(token());
    for (int i = 0; i < 2; ++i) trees_.emplace_back(width_, depth_, max_nodes_, eos);
  }

  void go() {
    for (int calls = 0; !input_.empty() && calls < 300; ++calls) {
      ptd::DraftTree& tree = trees_[input_.between(0, 1)];
      switch (input_.between(0, 6)) {
        case 0:
          plant(tree);
          break;
        case 1:
        case 2:
          grow(tree);
          break;
        case 3:
          tree.step_and_prune();
          break;
        case 4:
          pool_.merge(tree);
          break;
        case 5:
          retrieve();
          break;
        default:
          if (input_.one_in(8)) pool_.clear();
      }
      check_tree(tree);
      check_pool();
    }
  }

 private:
  TokenId token() { return input_.between(0, vocab_ - 1); }

  void plant(ptd::DraftTree& tree) {
    std::vector<std::vector<TokenId>> chains(static_cast<std::size_t>(input_.between(0, width_)));
    for (auto& chain : chains) {
      for (int n = input_.between(0, depth_); n > 0; --n) chain.push_back(token());
    }
    tree.init(chains);
  }

  void grow(ptd::DraftTree& tree) {
    const int each = input_.between(1, 3);
    std::vector<TokenId> predictions(tree.rows().size() * static_cast<std::size_t>(each));
    for (TokenId& prediction : predictions) {
      prediction = input_.one_in(9) ? ptd::kNoToken : token();
    }
    tree.expand(predictions, each);
    check_tree(tree);
    if (input_.one_in(2)) tree.refill();
  }

  void retrieve() {
    const TokenId key = input_.wild(0, vocab_);
    const int budget = input_.wild(0, 24);
    const bool known = pool_.find_top(key) != kNoNode;
    pool_.retrieve(key, budget, found_);
    EXPECT(static_cast<int>(found_.size()) <= std::max(budget, 0));
    EXPECT(known || found_.empty());
    if (known && budget > 0) {
      EXPECT(!found_.empty() && pool_.keys_by_age().back() == key);
    }
    std::set<std::pair<int, TokenId>> seen;
    for (std::size_t i = 0; i < found_.size(); ++i) {
      EXPECT(found_[i].parent >= kNoNode && found_[i].parent < static_cast<int>(i));
      EXPECT(found_[i].token >= 0 && found_[i].token < vocab_);
      EXPECT(seen.insert({found_[i].parent, found_[i].token}).second);
    }
  }

  void check_tree(const ptd::DraftTree& tree) {
    EXPECT(tree.size() <= max_nodes_ &&
           tree.rows().size() == static_cast<std::size_t>(tree.size()));
    EXPECT(tree.tree().size() == tree.size() + 1);  // and the node above the roots
    EXPECT(tree.tree().child_count(tree.top()) <= width_);
    for (std::size_t row = 0; row < tree.rows().size(); ++row) {
      EXPECT(tree.parent_rows()[row] < static_cast<int>(row));
      EXPECT(tree.tree().child_count(tree.rows()[row]) <= width_);
    }
  }

  void check_pool() {
    const auto keys = pool_.keys_by_age();
    EXPECT(static_cast<int>(keys.size()) == pool_.key_count() && pool_.key_count() <= max_keys_);
    EXPECT(std::set<TokenId>(keys.begin(), keys.end()).size() == keys.size());
    int total = 0;
    for (const TokenId key : keys) {
      const NodeId top = pool_.find_top(key);
      EXPECT(top != kNoNode);
      const int size = pool_.tree().subtree_size(top) - 1;
      EXPECT(size >= 1 && size <= nodes_per_key_);
      total += size;
    }
    EXPECT(total == pool_.total_nodes());
    EXPECT(pool_.tree().size() == total + pool_.key_count());
    // What was freed is used again: while a tree is merged, one key may be a draft tree too large.
    EXPECT(pool_.tree().capacity() <= (max_keys_ + 1) * (nodes_per_key_ + 1) + 2 * max_nodes_);
  }

  ptd_fuzz::Input& input_;
  int vocab_;
  int nodes_per_key_;
  int max_keys_;
  int width_;
  int depth_;
  int max_nodes_;
  ptd::CandidatePool pool_;
  std::vector<ptd::DraftTree> trees_;
  std::vector<ptd::CandidateNode> found_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ptd_fuzz::Input input(data, size);
  Run(input).go();
  return 0;
}
