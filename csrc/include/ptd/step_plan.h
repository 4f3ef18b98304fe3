// StepPlan: everything the device needs for one step, in one packed block (one host-to-device
// copy). TreeBuilder: the tree of one step, rows ordered [root | candidates | drafts], so a role is
// a range.
//
// The block's fields, each at a multiple of 64 bytes; N = node bucket, W = ceil(N/64), P =
// max_path:
//   header      int32[8]    see PlanHeader
//   sampling    float32[4]  top_k (0 = off), top_p (1 = off), min_p (0 = off), and for the listed
//                           successors of every row their own top_p (0 = off)
//   token_ids   int32[N]    padding repeats row 0
//   positions   int32[N]    prefix_len + depth
//   commit_src  int32[P]    absolute KV rows to move to prefix_len - n_commit + i; entries from
//                           n_commit on name their own destination (a copy that changes nothing)
//   temperature float32[N]  0 = argmax (draft rows always)
//   uniform     float32[N]  philox_uniform(seed, position of the row)
//   mask        uint64[N,W] bit j of row i: row j is i or an ancestor; padding sees itself only
#pragma once

#include <array>
#include <vector>

#include "ptd/bitmask.h"
#include "ptd/types.h"

namespace ptd {

enum PlanFlags : std::int32_t {
  kPlanMovesRows = 1,  // some commit_src differs from its destination
  kPlanSamples = 2,    // some row has a temperature above 0
  kPlanFilters = 4,    // top_k, top_p or min_p is active
};

struct PlanHeader {
  std::int32_t n_nodes;     // rows in use
  std::int32_t n_verify;    // root and candidates; rows from here on are draft rows
  std::int32_t prefix_len;  // committed KV rows; row i of the step is KV row prefix_len + i
  std::int32_t n_commit;    // entries of commit_src in use
  std::int32_t flags;       // PlanFlags
  std::int32_t unused[3];
};
static_assert(sizeof(PlanHeader) == 32, "the header is int32[8]");

struct PlanField {
  std::size_t offset;  // bytes from the start of the block
  std::size_t size;    // bytes
};

// Where each field lies in the block of a bucket.
struct PlanLayout {
  PlanField header, sampling, token_ids, positions, commit_src, temperature, uniform, mask;
  std::size_t total;

  static PlanLayout of(int n_bucket, int max_path);
};

class TreeBuilder {
 public:
  // max_nodes: rows of the step, root included (1..256). max_path: deepest node. Rows whose depth
  // would pass max_depth (the context limit) are refused. Tokens must be below vocab_size (0 =
  // unchecked): a model has no embedding for another.
  void begin(TokenId root, int max_nodes, int max_path, int max_depth, int vocab_size = 0);

  // A new row below `parent` (0 is the root), or kNoNode when the step is full or the row too deep.
  // Candidates come before drafts: once a draft row stands, add_candidate throws.
  NodeId add_candidate(NodeId parent, TokenId token);
  NodeId add_draft(NodeId parent, TokenId token);

  int size() const { return static_cast<int>(tokens_.size()); }
  int n_verify() const { return n_verify_; }
  int room() const { return max_nodes_ - size(); }
  int max_depth() const { return max_depth_; }  // of a row of this step
  TokenId token(NodeId row) const { return tokens_[static_cast<std::size_t>(row)]; }
  NodeId parent(NodeId row) const { return parents_[static_cast<std::size_t>(row)]; }
  int depth(NodeId row) const { return depths_[static_cast<std::size_t>(row)]; }
  const AncestorMask& mask(NodeId row) const { return masks_[static_cast<std::size_t>(row)]; }
  Span<const TokenId> tokens() const { return tokens_; }
  Span<const NodeId> parents() const { return parents_; }

 private:
  NodeId add(NodeId parent, TokenId token);

  std::vector<TokenId> tokens_;
  std::vector<NodeId> parents_;
  std::vector<int> depths_;
  std::vector<AncestorMask> masks_;
  int n_verify_ = 0;
  int max_nodes_ = 0;
  int max_depth_ = 0;
  int vocab_size_ = 0;
};

// What a step needs besides its tree.
struct StepState {
  int prefix_len;
  Span<const std::int32_t> commit_src;  // absolute KV rows of the last accepted path
  float temperature;
  int top_k;
  float top_p;
  float min_p;
  std::uint64_t seed;
  float successor_top_p = 0.0f;  // see DrafterNeeds::top_p
};

// Writes the block of bucket `n_bucket` (>= tree.size()) at `block`, which must hold
// PlanLayout::of(n_bucket, max_path).total bytes, 8-byte aligned.
void pack_plan(const TreeBuilder& tree, const StepState& state, int n_bucket, int max_path,
               unsigned char* block);

}  // namespace ptd
