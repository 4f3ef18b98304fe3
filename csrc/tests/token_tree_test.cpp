#include "ptd/token_tree.h"

#include <random>
#include <vector>

#include "check.h"

namespace {

using ptd::kNoNode;
using ptd::NodeId;
using ptd::TokenTree;

void preorder_visits_children_in_order() {
  TokenTree tree;
  const NodeId top = tree.create(0);
  const NodeId a = tree.append_child(top, 1);
  tree.append_child(a, 2);
  tree.append_child(a, 3);
  tree.append_child(top, 4);
  std::vector<int> tokens;
  for (NodeId at = top; at != kNoNode; at = tree.next_preorder(at, top)) {
    tokens.push_back(tree.node(at).token);
  }
  CHECK((tokens == std::vector<int>{0, 1, 2, 3, 4}));
  CHECK(tree.height(top) == 2 && tree.height(a) == 1);
  CHECK(tree.subtree_size(a) == 3 && tree.child_count(top) == 2);
}

void copy_keeps_shape_and_resets_counts() {
  TokenTree source;
  const NodeId top = source.create(0);
  const NodeId a = source.append_child(top, 1);
  source.append_child(source.append_child(a, 2), 3);
  source.append_child(a, 4);
  source.append_child(top, 9);  // not part of the copied subtree
  source.node(a).count = 7;
  TokenTree target;
  const NodeId root = target.create(0);
  CHECK(target.copy_subtree(source, a, root) == 4);
  const NodeId copy = target.find_child(root, 1);
  CHECK(target.node(copy).count == 1 && target.subtree_size(copy) == 4);
  CHECK(target.height(copy) == 2 && target.find_child(root, 9) == kNoNode);
}

// Random growth and pruning reaches a steady state in which the arena no longer grows.
void freed_nodes_are_recycled() {
  TokenTree tree;
  const NodeId top = tree.create(0);
  std::mt19937 random(1);
  int capacity = 0;
  for (int step = 0; step < 20000; ++step) {
    NodeId at = top;
    while (!tree.is_leaf(at) && random() % 3 != 0) at = tree.node(at).first_child;
    if (tree.size() < 200) tree.append_child(at, static_cast<int>(random() % 50));
    if (random() % 4 == 0 && !tree.is_leaf(top)) tree.remove_subtree(tree.node(top).first_child);
    if (step == 5000) capacity = tree.capacity();
    CHECK(tree.subtree_size(top) == tree.size());
  }
  CHECK(tree.capacity() <= 201 && tree.capacity() >= capacity);
}

}  // namespace

int main() {
  preorder_visits_children_in_order();
  copy_keeps_shape_and_resets_counts();
  freed_nodes_are_recycled();
}
