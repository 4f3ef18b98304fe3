// Verification of a candidate tree. Both walks return rows of the accepted path, root excluded.
#pragma once

#include <vector>

#include "ptd/types.h"

namespace ptd {

// Greedy and coupled sampling are one walk: from row 0 descend to the child that carries the row's
// own next token, until there is none. Several children with that token (unmerged chains): the one
// with the longest continued match, ties to the lowest row.
//   tokens, parents  [>= n_verify]; rows from n_verify on are ignored
//   next_tokens      [>= n_verify * stride]; row i's next token is next_tokens[i * stride]
void verify_walk(Span<const TokenId> tokens, Span<const NodeId> parents,
                 Span<const TokenId> next_tokens, int stride, int n_verify,
                 std::vector<NodeId>& path);

// Where the recursive walk takes its random numbers from: draw number k (from 1) at a depth.
class UniformSource {
 public:
  virtual ~UniformSource() = default;
  virtual double draw(int depth, int k) = 0;  // in [0, 1)
};

// The paper's Algorithm 2 for deterministic drafts: try the children in order, accept c if r <
// P[c], else set P[c] = 0 and renormalise over the whole vocabulary; if none is accepted, sample
// from what is left. (As printed it renormalises over the children only and accepts r <= P: both
// change the law.) Returns the last token; `path` holds the accepted rows.
//   probs  [n_verify, vocab] processed distributions, each row summing to 1
TokenId verify_recursive(Span<const TokenId> tokens, Span<const NodeId> parents,
                         Span<const double> probs, int n_verify, int vocab, UniformSource& uniforms,
                         std::vector<NodeId>& path);

}  // namespace ptd
