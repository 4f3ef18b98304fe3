// DraftSources: everything a hybrid tree draws its tokens from, and where each row of a tree stands
// in it.
#pragma once

#include "ptd/acceptance_model.h"
#include "ptd/candidate_pool.h"
#include "ptd/context_tables.h"

namespace ptd {

class DraftSources {
 public:
  // A token of the text or of a tree, as the sources see it.
  struct Place {
    ContextKey key;
    NodeId pool = kNoNode;         // in the pool's tries
    int match = kMaxContextOrder;  // no longer context of it stood in the text before
  };

  // used: bit s = source s is asked; entries: contexts that each table remembers.
  DraftSources(std::uint32_t used, int entries, int pool_nodes_per_key, int pool_max_keys);

  // A new text; what is remembered of earlier ones stays on request.
  void begin(bool keep);
  // The text goes on with this token.
  void append(TokenId token);
  // The model's likeliest tokens behind a place, [1 + top_k] as in a step's output.
  // of_text: the place is one of the text itself.
  void remember(const ContextKey& key, Span<const TokenId> outputs, bool of_text);

  Place text_end() const;
  Place child(const Place& place, TokenId token) const;
  // What the sources propose behind a place. runners_up: what was nearly chosen in its stead.
  void gather(Place& place, int depth, Span<const TokenId> runners_up, const AcceptanceModel& model,
              AcceptanceModel::Node& node) const;

  CandidatePool& pool() { return pool_; }
  std::size_t bytes() const { return text_.bytes() + successors_.bytes(); }

 private:
  bool uses(DraftSource s) const { return used_ >> static_cast<int>(s) & 1u; }

  std::uint32_t used_;
  SuccessorTable successors_;
  TextTable text_;
  CandidatePool pool_;
  ContextKey key_;
  TokenId last_ = kNoToken;
};

}  // namespace ptd
