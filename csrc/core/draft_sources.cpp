#include "ptd/draft_sources.h"

#include <algorithm>
#include <array>

namespace ptd {
namespace {

// Lengths of context that the text is remembered by; from three on a match is a long one.
constexpr std::array<int, 6> kTextOrders{8, 6, 4, 3, 2, 1};
constexpr int kLongOrder = 3;
constexpr int kModelOrders = 4;
constexpr int kPoolRanks = 4;

void propose_text(const AcceptanceModel& model, DraftSource source, const TextTable::Entry& entry,
                  int order, AcceptanceModel::Node& node) {
  int total = 0;
  for (const auto count : entry.counts) total += count;
  const int order_class = order >= 8 ? 5 : order >= 6 ? 4 : order - 1;
  // Seen once; always followed by this token; by several.
  const int sure = total == 1 ? 0 : entry.tokens[1] == kNoToken ? 1 : 2;
  model.open(node, source, sure);
  for (std::size_t rank = 0; rank < TextTable::kSlots; ++rank) {
    if (entry.tokens[rank] == kNoToken) break;
    const int share = sure < 2 ? sure : 2 * entry.counts[rank] > total ? 3 : 2;
    const int bucket = (order_class * 4 + share) * 3 + std::min(static_cast<int>(rank), 2);
    model.propose(node, source, bucket, entry.tokens[rank]);
  }
}

void propose_successors(const AcceptanceModel& model, DraftSource source,
                        const SuccessorTable::Entry& entry, int order,
                        AcceptanceModel::Node& node) {
  const int kind = (order == kModelOrders ? 2 : 0) + (entry.of_text ? 1 : 0);
  model.open(node, source, kind);
  for (int rank = 0; rank < SuccessorTable::kRanks; ++rank) {
    const TokenId token = entry.tokens[static_cast<std::size_t>(rank)];
    if (token == kNoToken) break;
    model.propose(node, source, kind * SuccessorTable::kRanks + rank, token);
  }
}

void propose_pool(const AcceptanceModel& model, const TokenTree& tree, NodeId parent,
                  AcceptanceModel::Node& node) {
  int total = 0;
  for (NodeId c = tree.node(parent).first_child; c != kNoNode; c = tree.node(c).next_sibling) {
    total += tree.node(c).count;
  }
  if (total == 0) return;
  const int kind = tree.node(parent).parent == kNoNode ? 0 : 1;  // a key itself, or deeper
  model.open(node, DraftSource::kPool, kind);
  int rank = 0;
  for (NodeId c = tree.node(parent).last_child; c != kNoNode && rank < kPoolRanks;
       c = tree.node(c).prev_sibling, ++rank) {
    const int count = tree.node(c).count;
    const int share = count == total ? 0 : 2 * count > total ? 1 : 4 * count > total ? 2 : 3;
    model.propose(node, DraftSource::kPool, (kind * 4 + share) * kPoolRanks + rank,
                  tree.node(c).token);
  }
}

}  // namespace

DraftSources::DraftSources(std::uint32_t used, int entries, int pool_nodes_per_key,
                           int pool_max_keys)
    : used_(used), successors_(entries), text_(entries), pool_(pool_nodes_per_key, pool_max_keys) {}

void DraftSources::begin(bool keep) {
  if (!keep) {
    successors_.clear();
    text_.clear();
    pool_.clear();
  }
  key_ = ContextKey();
  last_ = kNoToken;
}

void DraftSources::append(TokenId token) {
  for (const int order : kTextOrders) {
    if (order <= key_.length()) text_.add(key_.of(order), token);
  }
  key_ = key_.next(token);
  last_ = token;
}

void DraftSources::remember(const ContextKey& key, Span<const TokenId> outputs, bool of_text) {
  if (outputs[0] < 0 || outputs.size() < 2) return;
  const Span<const TokenId> best(outputs.data() + 1, outputs.size() - 1);
  const int longest = std::min(kModelOrders, key.length());
  for (int order = longest; order > 0; --order) successors_.prefetch(key.of(order));
  for (int order = longest; order > 0; --order) {
    successors_.put(key.of(order), best, of_text);
  }
}

DraftSources::Place DraftSources::text_end() const {
  Place place;
  place.key = key_;
  place.pool = last_ == kNoToken ? kNoNode : pool_.find_top(last_);
  return place;
}

DraftSources::Place DraftSources::child(const Place& place, TokenId token) const {
  Place made;
  made.key = place.key.next(token);
  if (place.pool != kNoNode) made.pool = pool_.tree().find_child(place.pool, token);
  if (made.pool == kNoNode || pool_.tree().is_leaf(made.pool)) made.pool = pool_.find_top(token);
  // A context stood in the text only if it did without its last token. Lengths that are not
  // remembered (5, 7) lie between the others.
  made.match = std::min(place.match + 2, kMaxContextOrder);
  return made;
}

void DraftSources::gather(Place& place, int depth, Span<const TokenId> runners_up,
                          const AcceptanceModel& model, AcceptanceModel::Node& node) const {
  model.begin(node, depth);
  const int length = place.key.length();
  const int longest = std::min(place.match, length);
  // The tables lie outside the nearer caches: all that may be read is fetched at once.
  for (int order = std::min(kModelOrders, length); order > 0; --order) {
    successors_.prefetch(place.key.of(order));
  }
  for (const int order : kTextOrders) {
    if (order <= longest) text_.prefetch(place.key.of(order));
  }
  int match = 0;
  bool done_long = false;
  for (const int order : kTextOrders) {
    const bool is_long = order >= kLongOrder;
    if (order > longest || (is_long && done_long)) continue;
    const TextTable::Entry* entry = text_.find(place.key.of(order));
    if (entry == nullptr) continue;
    match = std::max(match, order);
    done_long = is_long;
    const auto source = is_long ? DraftSource::kLongText : DraftSource::kShortText;
    if (uses(source)) propose_text(model, source, *entry, order, node);
    if (!is_long) break;
  }
  place.match = match;
  bool done_context = false;
  for (int order = std::min(kModelOrders, length); order > 0; --order) {
    if (order >= kLongOrder && done_context) continue;
    const DraftSource source = order >= kLongOrder ? DraftSource::kContext
                               : order == 2        ? DraftSource::kPair
                                                   : DraftSource::kToken;
    if (!uses(source)) continue;
    const SuccessorTable::Entry* entry = successors_.find(place.key.of(order));
    if (entry == nullptr) continue;
    done_context = true;
    propose_successors(model, source, *entry, order, node);
  }
  if (place.pool != kNoNode && uses(DraftSource::kPool)) {
    propose_pool(model, pool_.tree(), place.pool, node);
  }
  if (!runners_up.empty() && uses(DraftSource::kRunnerUp)) {
    // Where others have a say already, what is left for a runner-up is little.
    const int others = node.opened();
    const int kind = others == 0 ? 0 : others <= 2 ? 1 : others <= 4 ? 2 : 3;
    model.open(node, DraftSource::kRunnerUp, kind);
    for (std::size_t i = 0; i < std::min<std::size_t>(runners_up.size(), 8); ++i) {
      model.propose(node, DraftSource::kRunnerUp, kind * 8 + static_cast<int>(i), runners_up[i]);
    }
  }
  model.finish(node);
}

}  // namespace ptd
