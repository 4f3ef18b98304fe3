#include "ptd/verify.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ptd {

void verify_walk(Span<const TokenId> tokens, Span<const NodeId> parents,
                 Span<const TokenId> next_tokens, int stride, int n_verify,
                 std::vector<NodeId>& path) {
  // Parents precede children: a forward pass finds the rows that are reached by following next
  // tokens from the root, a backward pass how deep each of them leads.
  path.clear();
  bool matched[kMaxTreeNodes] = {true};
  int reach[kMaxTreeNodes] = {0};  // depth of the deepest matched row at or below this one
  for (int i = 1; i < n_verify; ++i) {
    const auto row = static_cast<std::size_t>(i);
    const NodeId p = parents[row];
    matched[i] = matched[p] && tokens[row] == next_tokens[static_cast<std::size_t>(p * stride)];
    reach[i] = reach[p] + 1;
  }
  for (int i = n_verify - 1; i > 0; --i) {
    int& above = reach[parents[static_cast<std::size_t>(i)]];
    if (matched[i]) above = std::max(above, reach[i]);
  }
  NodeId at = 0;
  for (int i = 1; i < n_verify; ++i) {
    if (matched[i] && parents[static_cast<std::size_t>(i)] == at && reach[i] == reach[at]) {
      path.push_back(at = i);
    }
  }
}

TokenId verify_recursive(Span<const TokenId> tokens, Span<const NodeId> parents,
                         Span<const double> probs, int n_verify, int vocab, UniformSource& uniforms,
                         std::vector<NodeId>& path) {
  path.clear();
  const auto size = static_cast<std::size_t>(vocab);
  std::vector<double> rest(size);
  NodeId at = 0;
  while (true) {
    const double* row = probs.data() + static_cast<std::size_t>(at) * size;
    rest.assign(row, row + size);
    const int depth = static_cast<int>(path.size());
    int draws = 0;
    NodeId accepted = kNoNode;
    for (int c = at + 1; c < n_verify && accepted == kNoNode; ++c) {
      if (parents[static_cast<std::size_t>(c)] != at) continue;
      const TokenId token = tokens[static_cast<std::size_t>(c)];
      if (token < 0 || token >= vocab) {
        throw InvalidArgument::for_field("token", token,
                                         "an id from 0 to " + std::to_string(vocab - 1));
      }
      double& p = rest[static_cast<std::size_t>(token)];
      if (p <= 0.0) continue;  // it can be neither accepted nor removed: no draw is spent on it
      if (uniforms.draw(depth, ++draws) < p) {
        accepted = c;
        break;
      }
      const double removed = std::exchange(p, 0.0);
      const double total = std::accumulate(rest.begin(), rest.end(), 0.0);
      if (total <= 0.0) {  // rounding left nothing: all the mass was on this child
        p = removed;
        accepted = c;
        break;
      }
      for (double& q : rest) q /= total;
    }
    if (accepted == kNoNode) {
      const double total = std::accumulate(rest.begin(), rest.end(), 0.0);
      const double target = uniforms.draw(depth, ++draws) * total;
      double cumulative = 0.0;
      TokenId last = 0;
      for (int t = 0; t < vocab; ++t) {
        if (rest[static_cast<std::size_t>(t)] <= 0.0) continue;
        last = t;
        cumulative += rest[static_cast<std::size_t>(t)];
        if (cumulative > target) break;
      }
      return last;
    }
    path.push_back(accepted);
    at = accepted;
  }
}

}  // namespace ptd
