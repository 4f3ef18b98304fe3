// SuffixDrafter: continuations of the text's last tokens, by how often they followed those before.
// Source: SuffixDecoding (Oliaro et al., 2024, arXiv 2411.04975).
//
// For every length m at which the last m tokens occurred before, continuations are drafted from
// that place of a suffix tree: at most factor * m nodes, the most probable first, where
//   P(child) = P(parent) * count(child) / count(parent),  P = 1 at the place itself,
// and a child below min_probability is left out. Counts are occurrences in the text; the last m
// tokens are themselves one of their own sequence, which nothing follows. The draft with the
// largest sum of P is proposed; among equals that of the longest match. Among equally frequent
// continuations the one that occurred last goes first.
//
// Suffix trees: one of prompt and output, and, with index_tokens, two of the outputs of earlier
// requests. When the younger of these is full (index_tokens / 2) it takes the place of the older,
// which goes. A tree takes up to about 200 bytes a token of its text.
#pragma once

#include <vector>

#include "ptd/drafter.h"
#include "ptd/suffix_tree.h"

namespace ptd {

struct SuffixOptions {
  int max_candidate_nodes = 32;  // of a step
  int max_depth = 64;            // of a tree: match and continuation together
  double factor = 1.0;           // nodes a token of the match
  double min_probability = 0.1;  // of a continuation
  bool as_tree = true;           // else the most probable child alone, at every node
  int index_tokens = 0;          // of earlier outputs, at most; 0 keeps none
};

class SuffixDrafter final : public Drafter {
 public:
  explicit SuffixDrafter(SuffixOptions options);

  DrafterNeeds needs() const override { return {options_.max_candidate_nodes}; }
  void begin(Span<const TokenId> prompt) override;
  void propose(Span<const TokenId> committed, TreeBuilder& tree) override;
  void observe(const StepOutcome& outcome) override;

  const SuffixTree& text() const { return text_; }
  // Tokens of earlier outputs that are kept.
  std::size_t indexed_tokens() const { return young_.tree.text_size() + old_.tree.text_size(); }

 private:
  // Earlier outputs, and where the text's last tokens occur in them, the longest match first.
  struct Index {
    explicit Index(int max_depth) : tree(max_depth) {}
    void follow(TokenId token);
    SuffixTree tree;
    std::vector<SuffixTree::Place> places;
  };
  struct Match {
    const SuffixTree* tree;
    SuffixTree::Place place;
    int length;
    int budget;
    int source;  // 0 is the text itself
  };
  struct DraftNode {
    TokenId token;
    int parent;  // in the draft, or kNoNode
  };
  // A node that may be taken next; the heap's top has the best score, the earliest on a tie.
  struct Frontier {
    double probability;
    int order;
    SuffixTree::Place place;
    TokenId token;
    int parent;
    bool operator<(const Frontier& other) const {
      return probability != other.probability ? probability < other.probability
                                              : order > other.order;
    }
  };

  void append(TokenId token);
  void remember_output();
  void add_match(const SuffixTree& tree, SuffixTree::Place place, int length, int source);
  double most(const Match& match) const;
  double draft(const Match& match);

  SuffixOptions options_;
  SuffixTree text_;
  Index young_;
  Index old_;
  std::vector<TokenId> output_;  // of the request under way, if it is to be kept
  int budget_ = 0;               // of the step under way
  std::vector<Match> matches_;
  std::vector<DraftNode> draft_;
  std::vector<DraftNode> best_;
  std::vector<Frontier> frontier_;
  std::vector<NodeId> placed_;
};

}  // namespace ptd
