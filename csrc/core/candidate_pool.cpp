#include "ptd/candidate_pool.h"

#include <algorithm>

namespace ptd {
namespace {

std::size_t hash_token(TokenId token) {
  // Fibonacci hashing: consecutive ids, common in vocabularies, spread over the table.
  return static_cast<std::size_t>(
      (static_cast<std::uint64_t>(static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15ull) >>
      32);
}

}  // namespace

CandidatePool::CandidatePool(int max_nodes_per_key, int max_keys)
    : max_nodes_per_key_(max_nodes_per_key), max_keys_(max_keys) {
  if (max_nodes_per_key < 1) {
    throw InvalidArgument::for_field("max_nodes_per_key", max_nodes_per_key, "an integer >= 1");
  }
  if (max_keys < 1 || max_keys > (1 << 24)) {
    throw InvalidArgument::for_field("max_keys", max_keys, "an integer from 1 to 16777216");
  }
  std::size_t n_slots = 4;
  while (n_slots < 2 * static_cast<std::size_t>(max_keys)) n_slots *= 2;
  slots_.assign(n_slots, -1);
}

int CandidatePool::find_slot(TokenId token) const {
  const std::size_t last = slots_.size() - 1;
  std::size_t slot = hash_token(token) & last;
  while (slots_[slot] != -1 && entries_[static_cast<std::size_t>(slots_[slot])].key != token) {
    slot = (slot + 1) & last;
  }
  return static_cast<int>(slot);
}

int CandidatePool::find_entry(TokenId token) const {
  return slots_[static_cast<std::size_t>(find_slot(token))];
}

NodeId CandidatePool::find_top(TokenId token) const {
  const int e = find_entry(token);
  return e == -1 ? kNoNode : entries_[static_cast<std::size_t>(e)].top;
}

void CandidatePool::link_newest(int e) {
  Entry& entry = entries_[static_cast<std::size_t>(e)];
  entry.older = newest_;
  entry.newer = -1;
  if (newest_ != -1) entries_[static_cast<std::size_t>(newest_)].newer = e;
  newest_ = e;
  if (oldest_ == -1) oldest_ = e;
}

void CandidatePool::unlink(int e) {
  const Entry& entry = entries_[static_cast<std::size_t>(e)];
  if (entry.older != -1) {
    entries_[static_cast<std::size_t>(entry.older)].newer = entry.newer;
  } else {
    oldest_ = entry.newer;
  }
  if (entry.newer != -1) {
    entries_[static_cast<std::size_t>(entry.newer)].older = entry.older;
  } else {
    newest_ = entry.older;
  }
}

int CandidatePool::touch(TokenId token) {
  int e = find_entry(token);
  if (e != -1) {
    if (e != newest_) {
      unlink(e);
      link_newest(e);
    }
    return e;
  }
  if (key_count_ == max_keys_) evict_oldest_key();
  if (free_entries_.empty()) {
    e = static_cast<int>(entries_.size());
    entries_.emplace_back();
  } else {
    e = free_entries_.back();
    free_entries_.pop_back();
  }
  entries_[static_cast<std::size_t>(e)] = Entry{token, tree_.create(kNoToken), 0, -1, -1};
  slots_[static_cast<std::size_t>(find_slot(token))] = e;
  link_newest(e);
  ++key_count_;
  return e;
}

void CandidatePool::evict_oldest_key() {
  const int e = oldest_;
  Entry& entry = entries_[static_cast<std::size_t>(e)];
  const std::size_t last = slots_.size() - 1;
  std::size_t hole = static_cast<std::size_t>(find_slot(entry.key));
  unlink(e);
  total_nodes_ -= entry.size;
  tree_.remove_subtree(entry.top);
  free_entries_.push_back(e);
  --key_count_;
  // Close the hole so that probing never stops early: move back every entry that probed past it.
  slots_[hole] = -1;
  for (std::size_t s = (hole + 1) & last; slots_[s] != -1; s = (s + 1) & last) {
    const std::size_t home = hash_token(entries_[static_cast<std::size_t>(slots_[s])].key) & last;
    if (((s - home) & last) >= ((s - hole) & last)) {
      slots_[hole] = slots_[s];
      slots_[s] = -1;
      hole = s;
    }
  }
}

int CandidatePool::merge_children(NodeId target, const TokenTree& source, NodeId source_parent) {
  int added = 0;
  for (NodeId c = source.node(source_parent).first_child; c != kNoNode;
       c = source.node(c).next_sibling) {
    const NodeId known = tree_.find_child(target, source.node(c).token);
    if (known == kNoNode) {
      added += tree_.copy_subtree(source, c, target);
    } else {
      ++tree_.node(known).count;
      added += merge_children(known, source, c);  // as deep as the draft tree: at most 64
    }
  }
  return added;
}

void CandidatePool::trim(Entry& entry) {
  while (entry.size > max_nodes_per_key_) {
    const NodeId oldest = tree_.node(entry.top).first_child;
    if (oldest == tree_.node(entry.top).last_child) break;
    entry.size -= tree_.remove_subtree(oldest);
  }
  if (entry.size <= max_nodes_per_key_) return;
  breadth_first_.assign(1, tree_.node(entry.top).first_child);
  for (std::size_t i = 0; i < breadth_first_.size(); ++i) {
    for (NodeId c = tree_.node(breadth_first_[i]).first_child; c != kNoNode;
         c = tree_.node(c).next_sibling) {
      breadth_first_.push_back(c);
    }
  }
  for (; entry.size > max_nodes_per_key_; breadth_first_.pop_back()) {
    entry.size -= tree_.remove_subtree(breadth_first_.back());
  }
}

void CandidatePool::merge(const TokenTree& source, Span<const NodeId> rows) {
  for (const NodeId v : rows) {
    if (source.is_leaf(v)) continue;
    Entry& entry = entries_[static_cast<std::size_t>(touch(source.node(v).token))];
    const int size_before = entry.size;
    entry.size += merge_children(entry.top, source, v);
    trim(entry);
    total_nodes_ += entry.size - size_before;
  }
}

void CandidatePool::retrieve(TokenId token, int budget, std::vector<CandidateNode>& out) {
  out.clear();
  if (find_entry(token) == -1 || budget <= 0) return;
  const Entry& entry = entries_[static_cast<std::size_t>(touch(token))];
  if (entry.size <= budget) {
    retrieve_all(entry, out);
  } else {
    retrieve_best(entry, budget, out);
  }
}

void CandidatePool::retrieve_all(const Entry& entry, std::vector<CandidateNode>& out) {
  open_.assign(1, kNoNode);
  NodeId at = tree_.node(entry.top).first_child;
  while (at != kNoNode) {
    out.push_back({tree_.node(at).token, open_.back()});
    if (!tree_.is_leaf(at)) {
      open_.push_back(static_cast<int>(out.size()) - 1);
      at = tree_.node(at).first_child;
      continue;
    }
    while (at != entry.top && tree_.node(at).next_sibling == kNoNode) {
      at = tree_.node(at).parent;
      open_.pop_back();
    }
    at = at == entry.top ? kNoNode : tree_.node(at).next_sibling;
  }
}

void CandidatePool::retrieve_best(const Entry& entry, int budget, std::vector<CandidateNode>& out) {
  frontier_.clear();
  pushed_ = 0;
  push_children(entry.top, 1.0, kNoNode);
  while (!frontier_.empty() && static_cast<int>(out.size()) < budget) {
    std::pop_heap(frontier_.begin(), frontier_.end());
    const Frontier best = frontier_.back();
    frontier_.pop_back();
    out.push_back({tree_.node(best.node).token, best.parent});
    push_children(best.node, best.score, static_cast<int>(out.size()) - 1);
  }
}

void CandidatePool::push_children(NodeId parent, double score, int parent_index) {
  std::int64_t total = 0;
  for (NodeId c = tree_.node(parent).first_child; c != kNoNode; c = tree_.node(c).next_sibling) {
    total += tree_.node(c).count;
  }
  for (NodeId c = tree_.node(parent).first_child; c != kNoNode; c = tree_.node(c).next_sibling) {
    const double weighted = score * static_cast<double>(tree_.node(c).count);
    frontier_.push_back({weighted / static_cast<double>(total), pushed_++, c, parent_index});
    std::push_heap(frontier_.begin(), frontier_.end());
  }
}

std::vector<TokenId> CandidatePool::keys_by_age() const {
  std::vector<TokenId> keys;
  for (int e = oldest_; e != -1; e = entries_[static_cast<std::size_t>(e)].newer) {
    keys.push_back(entries_[static_cast<std::size_t>(e)].key);
  }
  return keys;
}

void CandidatePool::clear() {
  while (key_count_ > 0) evict_oldest_key();
}

}  // namespace ptd
