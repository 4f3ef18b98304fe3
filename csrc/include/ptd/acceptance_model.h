// AcceptanceModel: how likely is a proposed token to be the model's next one? Learned online.
//
// Each source that proposes a token says in which of its buckets the proposal lies (its rank, how
// long the match was, ...). A bucket counts how often its proposals were right, with decay. At a
// node the sources are mixed in the logistic domain: a token's score is the weighted sum of the
// log-odds of its buckets; a source that proposes something here and leaves the token out adds the
// log-odds of an "absent" bucket. The tokens of a node and "none of them" share the probability
// (softmax). Weights are learned by gradient, and a last table maps what was predicted to what came
// true. Sources: Mahoney, "Adaptive weighing of context models for lossless data compression"
// (2005), for mixing and calibration; the softmax over a node's tokens is this project's.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ptd/types.h"

namespace ptd {

enum class DraftSource : std::uint8_t {
  kLongText,   // what followed the longest context (3 to 8 tokens) that stood in the text before
  kShortText,  // the same for the last two tokens or the last one
  kContext,    // the model's likeliest tokens after the last three or four tokens
  kPair,       // ... after the last two
  kToken,      // ... after the last one
  kPool,       // PTD's candidate pool
  kRunnerUp,   // what was nearly chosen in the root's place
};
inline constexpr int kDraftSources = 7;
const char* draft_source_name(DraftSource source);

class AcceptanceModel {
 public:
  static constexpr int kBuckets = 96;       // of a source; the last ones are for absence
  static constexpr int kAbsentBuckets = 4;  // by the source's confidence
  static constexpr int kWeightSets = 24;    // by depth and by which sources have a say
  static constexpr int kMaxProposals = 32;  // different tokens at one node
  static constexpr int kCalibrationKnots = 17;
  static constexpr int kStateSize =
      2 * kDraftSources * kBuckets + kWeightSets * (kDraftSources + 1) + kCalibrationKnots;

  // The proposals of all sources at one node, and what is known of them.
  class Node {
   public:
    int size() const { return size_; }
    // Sources that have been opened.
    int opened() const { return opened_; }
    TokenId token(int i) const { return tokens_[static_cast<std::size_t>(i)]; }
    float probability(int i) const { return probabilities_[static_cast<std::size_t>(i)]; }
    // Bit s: source s proposed token i.
    std::uint32_t sources(int i) const { return present_[static_cast<std::size_t>(i)]; }

   private:
    friend class AcceptanceModel;
    int size_ = 0;
    int opened_ = 0;
    std::size_t weight_set_ = 0;
    bool below_root_ = false;
    std::uint32_t active_ = 0;  // bit s: source s has a say
    std::array<std::uint8_t, kDraftSources> absent_{};
    std::array<TokenId, kMaxProposals> tokens_{};
    std::array<float, kMaxProposals> raw_{};            // softmax
    std::array<float, kMaxProposals> probabilities_{};  // calibrated
    std::array<std::uint32_t, kMaxProposals> present_{};
    std::array<std::array<std::uint8_t, kDraftSources>, kMaxProposals> buckets_{};
  };

  // Predictions of a tenth each (0 to 0.1, ...): how many, their sum, and how many came true.
  struct Reliability {
    std::array<std::int64_t, 10> proposed{};
    std::array<double, 10> predicted{};
    std::array<std::int64_t, 10> right{};
  };

  AcceptanceModel() { reset(); }
  // Forgets what was learned: the built-in values hold again.
  void reset();

  // One node: begin, then for each source open and its proposals, then finish.
  void begin(Node& node, int depth) const;
  // `confidence` 0 to 3: a class of the source's whole list.
  void open(Node& node, DraftSource source, int confidence) const;
  // `bucket` below kBuckets - kAbsentBuckets. A source's first word on a token counts.
  void propose(Node& node, DraftSource source, int bucket, TokenId token) const;
  void finish(Node& node) const;

  // The model's token at this node became known.
  void learn(const Node& node, TokenId truth);

  const Reliability& reliability() const { return reliability_; }
  // Everything learned, kStateSize numbers: probability and count of each bucket, weights by set,
  // calibration. `load` makes them the state (counts are capped, so that the new text soon counts).
  std::vector<float> state() const;
  void load(const std::vector<float>& state);

 private:
  struct Bucket {
    float probability;
    float log_odds;
    float count;
  };
  Bucket& bucket(std::size_t source, int index) {
    return buckets_[source * kBuckets + static_cast<std::size_t>(index)];
  }
  const Bucket& bucket(std::size_t source, int index) const {
    return buckets_[source * kBuckets + static_cast<std::size_t>(index)];
  }
  int used(const Node& node, std::size_t i, std::size_t source) const {
    return node.present_[i] >> source & 1u ? node.buckets_[i][source] : node.absent_[source];
  }
  static void update(Bucket& b, bool hit);
  float calibrated(float raw) const;
  void calibrate(float raw, bool hit);

  std::array<Bucket, static_cast<std::size_t>(kDraftSources* kBuckets)> buckets_;
  std::array<std::array<float, kDraftSources + 1>, kWeightSets> weights_;  // the last is a constant
  std::array<float, kCalibrationKnots> calibration_;
  Reliability reliability_;
};

}  // namespace ptd
