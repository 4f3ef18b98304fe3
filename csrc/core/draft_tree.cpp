#include "ptd/draft_tree.h"

#include <algorithm>

namespace ptd {
namespace {

constexpr int kMaxLimit = 64;

void check_range(const char* field, int value, int low, int high) {
  if (value < low || value > high) {
    throw InvalidArgument::for_field(
        field, value, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  }
}

}  // namespace

DraftTree::DraftTree(int width, int depth, int max_nodes, std::vector<TokenId> eos_ids)
    : width_(width), depth_(depth), max_nodes_(max_nodes), eos_ids_(std::move(eos_ids)) {
  check_range("width", width, 1, kMaxLimit);
  check_range("depth", depth, 1, kMaxLimit);
  check_range("max_nodes", max_nodes, 1, kMaxTreeNodes - 1);
  top_ = tree_.create(kNoToken);
}

bool DraftTree::is_eos(TokenId token) const {
  return std::find(eos_ids_.begin(), eos_ids_.end(), token) != eos_ids_.end();
}

void DraftTree::init(const std::vector<std::vector<TokenId>>& chains) {
  while (!tree_.is_leaf(top_)) remove(tree_.node(top_).first_child);
  for (const auto& chain : chains) {
    if (chain.empty() || tree_.child_count(top_) >= width_) continue;
    if (tree_.find_child(top_, chain.front()) != kNoNode) continue;
    NodeId parent = top_;
    for (const TokenId token : chain) {
      if (is_eos(token) || size_ == max_nodes_) break;
      parent = tree_.append_child(parent, token);
      ++size_;
    }
  }
  newest_root_prediction_ = kNoToken;
  refresh_rows();
}

void DraftTree::expand(Span<const TokenId> predictions, int each) {
  const auto stride = static_cast<std::size_t>(std::max(each, 1));
  if (predictions.size() != rows_.size() * stride) {
    throw InvalidArgument::for_field(
        "len(predictions)", predictions.size(),
        std::to_string(stride) + " a row (" + std::to_string(rows_.size() * stride) + ")");
  }
  newest_root_prediction_ = kNoToken;
  for (std::size_t rank = 0; rank < stride; ++rank) {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const NodeId v = rows_[i];
      const TokenId token = predictions[i * stride + rank];
      if (rank == 0 && v == tree_.node(top_).last_child) newest_root_prediction_ = token;
      if (token < 0 || size_ >= max_nodes_) continue;
      if (tree_.find_child(v, token) != kNoNode || tree_.child_count(v) >= width_) continue;
      tree_.append_child(v, token);
      ++size_;
    }
  }
  refresh_rows();
}

void DraftTree::refill() {
  const NodeId newest = tree_.node(top_).last_child;
  const TokenId token = newest_root_prediction_;
  newest_root_prediction_ = kNoToken;
  if (newest == kNoNode || token < 0 || tree_.child_count(top_) >= width_) return;
  if (tree_.find_child(top_, token) != kNoNode) return;
  const NodeId child = tree_.find_child(newest, token);
  if (child != kNoNode) {
    tree_.detach(child);
    tree_.attach(top_, child);
  } else if (size_ < max_nodes_) {
    tree_.append_child(top_, token);
    ++size_;
  }
  refresh_rows();
}

void DraftTree::step_and_prune() {
  if (!eos_ids_.empty()) {
    NodeId at = tree_.node(top_).first_child;
    while (at != kNoNode) {
      if (is_eos(tree_.node(at).token)) {
        const NodeId next = tree_.skip_subtree(at, top_);
        remove(at);
        at = next;
      } else {
        at = tree_.next_preorder(at, top_);
      }
    }
  }
  tall_roots_.clear();
  for (NodeId r = tree_.node(top_).first_child; r != kNoNode; r = tree_.node(r).next_sibling) {
    if (tree_.height(r) >= depth_) tall_roots_.push_back(r);
  }
  if (tall_roots_.empty() && size_ >= max_nodes_) tall_roots_.push_back(tallest_root());
  for (const NodeId root : tall_roots_) {
    tree_.detach(root);
    NodeId heir = tree_.node(root).first_child;
    while (heir != kNoNode && tree_.find_child(top_, tree_.node(heir).token) != kNoNode) {
      heir = tree_.node(heir).next_sibling;
    }
    if (heir != kNoNode) {
      tree_.detach(heir);
      tree_.attach(top_, heir);
    }
    remove(root);
  }
  refresh_rows();
}

NodeId DraftTree::tallest_root() const {
  NodeId tallest = tree_.node(top_).first_child;
  for (NodeId r = tallest; r != kNoNode; r = tree_.node(r).next_sibling) {
    if (tree_.height(r) > tree_.height(tallest)) tallest = r;
  }
  return tallest;
}

void DraftTree::refresh_rows() {
  rows_.clear();
  parent_rows_.clear();
  row_of_node_.resize(static_cast<std::size_t>(tree_.capacity()));
  row_of_node_[static_cast<std::size_t>(top_)] = kNoNode;
  for (NodeId at = tree_.node(top_).first_child; at != kNoNode;
       at = tree_.next_preorder(at, top_)) {
    row_of_node_[static_cast<std::size_t>(at)] = static_cast<int>(rows_.size());
    rows_.push_back(at);
    parent_rows_.push_back(row_of_node_[static_cast<std::size_t>(tree_.node(at).parent)]);
  }
}

}  // namespace ptd
