#include "ptd/acceptance_model.h"

#include <algorithm>
#include <cmath>

#include "acceptance_priors.h"

namespace ptd {
namespace {

constexpr float kMostLogOdds = 6.0f;
constexpr float kLongestMemory = 255.0f;  // observations after which a bucket forgets
constexpr float kPriorCount = 100.0f;     // most that a loaded bucket counts for
constexpr float kWeightRate = 0.01f;
constexpr float kCalibrationRate = 0.001f;
constexpr int kFirstAbsent = AcceptanceModel::kBuckets - AcceptanceModel::kAbsentBuckets;

float log_odds(float p) {
  return std::clamp(std::log(p / (1.0f - p)), -kMostLogOdds, kMostLogOdds);
}

// What a source's word is worth depends on who else has a say: the longest text that matches (none,
// short, long) and the longest context the model's own answers are known for (none to three).
std::size_t weight_set(std::uint32_t active, bool below_root) {
  const auto has = [&](DraftSource s) { return (active >> static_cast<int>(s) & 1u) != 0; };
  const int text = has(DraftSource::kLongText) ? 2 : has(DraftSource::kShortText) ? 1 : 0;
  const int known = has(DraftSource::kContext) ? 3
                    : has(DraftSource::kPair)  ? 2
                    : has(DraftSource::kToken) ? 1
                                               : 0;
  return static_cast<std::size_t>((below_root ? 12 : 0) + 4 * text + known);
}

// Where a prediction lies between the knots of the calibration, which stand at equal distances on
// the square root's scale: finer where most predictions are.
float knot_position(float p) {
  return std::sqrt(p) * static_cast<float>(AcceptanceModel::kCalibrationKnots - 1);
}

}  // namespace

const char* draft_source_name(DraftSource source) {
  static constexpr const char* kNames[kDraftSources] = {
      "long text", "short text", "context", "pair", "token", "pool", "runner-up"};
  return kNames[static_cast<std::size_t>(source)];
}

void AcceptanceModel::reset() {
  load({std::begin(kAcceptancePriors), std::end(kAcceptancePriors)});
  reliability_ = {};
}

void AcceptanceModel::begin(Node& node, int depth) const {
  node.size_ = 0;
  node.active_ = 0;
  node.opened_ = 0;
  node.below_root_ = depth > 0;
}

void AcceptanceModel::open(Node& node, DraftSource source, int confidence) const {
  const auto s = static_cast<std::size_t>(source);
  node.active_ |= 1u << s;
  ++node.opened_;
  node.absent_[s] = static_cast<std::uint8_t>(kFirstAbsent + confidence);
}

void AcceptanceModel::propose(Node& node, DraftSource source, int index, TokenId token) const {
  const auto s = static_cast<std::size_t>(source);
  const auto size = static_cast<std::size_t>(node.size_);
  std::size_t i = 0;
  while (i < size && node.tokens_[i] != token) ++i;
  if (i == size) {
    if (node.size_ == kMaxProposals) return;
    ++node.size_;
    node.tokens_[i] = token;
    node.present_[i] = 0;
  }
  if (node.present_[i] >> s & 1u) return;
  node.present_[i] |= 1u << s;
  node.buckets_[i][s] = static_cast<std::uint8_t>(index);
}

void AcceptanceModel::finish(Node& node) const {
  node.weight_set_ = weight_set(node.active_, node.below_root_);
  const auto& weights = weights_[node.weight_set_];
  std::array<float, kDraftSources> absent{};
  float base = weights[kDraftSources];
  for (std::size_t s = 0; s < kDraftSources; ++s) {
    if (!(node.active_ >> s & 1u)) continue;
    absent[s] = weights[s] * bucket(s, node.absent_[s]).log_odds;
    base += absent[s];
  }
  const auto size = static_cast<std::size_t>(node.size_);
  float total = 1.0f;  // of "none of them"
  for (std::size_t i = 0; i < size; ++i) {
    float score = base;
    for (std::uint32_t present = node.present_[i]; present != 0; present &= present - 1) {
      const auto s = static_cast<std::size_t>(__builtin_ctz(present));
      score += weights[s] * bucket(s, node.buckets_[i][s]).log_odds - absent[s];
    }
    node.raw_[i] = std::exp(std::min(score, 20.0f));
    total += node.raw_[i];
  }
  for (std::size_t i = 0; i < size; ++i) {
    node.raw_[i] /= total;
    node.probabilities_[i] = calibrated(node.raw_[i]);
  }
}

float AcceptanceModel::calibrated(float raw) const {
  const auto& knots = calibration_;
  const float at = knot_position(raw);
  const auto k = static_cast<std::size_t>(std::min(at, kCalibrationKnots - 2.0f));
  const float share = at - static_cast<float>(k);
  return knots[k] + share * (knots[k + 1] - knots[k]);
}

void AcceptanceModel::calibrate(float raw, bool hit) {
  auto& knots = calibration_;
  const float at = knot_position(raw);
  const auto k = static_cast<std::size_t>(std::min(at, kCalibrationKnots - 2.0f));
  const float share = at - static_cast<float>(k);
  const float error = (hit ? 1.0f : 0.0f) - calibrated(raw);
  knots[k] += kCalibrationRate * (1.0f - share) * error;
  knots[k + 1] += kCalibrationRate * share * error;
  for (std::size_t i : {k, k + 1}) knots[i] = std::clamp(knots[i], 1e-4f, 0.9999f);
}

void AcceptanceModel::update(Bucket& b, bool hit) {
  b.count = std::min(b.count + 1.0f, kLongestMemory);
  b.probability += ((hit ? 1.0f : 0.0f) - b.probability) / b.count;
  b.probability = std::clamp(b.probability, 0.001f, 0.999f);
  b.log_odds = log_odds(b.probability);
}

void AcceptanceModel::learn(const Node& node, TokenId truth) {
  auto& weights = weights_[node.weight_set_];
  const auto size = static_cast<std::size_t>(node.size_);
  std::array<float, kDraftSources + 1> gradient{};
  for (std::size_t i = 0; i < size; ++i) {
    const bool hit = node.tokens_[i] == truth;
    const float p = node.probabilities_[i];
    const auto tenth = static_cast<std::size_t>(std::min(9.0f, p * 10.0f));
    ++reliability_.proposed[tenth];
    reliability_.right[tenth] += hit ? 1 : 0;
    reliability_.predicted[tenth] += static_cast<double>(p);
    const float error = (hit ? 1.0f : 0.0f) - node.raw_[i];
    for (std::size_t s = 0; s < kDraftSources; ++s) {
      if (node.active_ >> s & 1u) gradient[s] += error * bucket(s, used(node, i, s)).log_odds;
    }
    gradient[kDraftSources] += error;
    calibrate(node.raw_[i], hit);
  }
  for (std::size_t s = 0; s < weights.size(); ++s) weights[s] += kWeightRate * gradient[s];
  for (std::size_t i = 0; i < size; ++i) {
    const bool hit = node.tokens_[i] == truth;
    for (std::size_t s = 0; s < kDraftSources; ++s) {
      if (node.active_ >> s & 1u) update(bucket(s, used(node, i, s)), hit);
    }
  }
}

std::vector<float> AcceptanceModel::state() const {
  std::vector<float> out;
  out.reserve(kStateSize);
  for (const Bucket& b : buckets_) {
    out.push_back(b.probability);
    out.push_back(b.count);
  }
  for (const auto& set : weights_) out.insert(out.end(), set.begin(), set.end());
  out.insert(out.end(), calibration_.begin(), calibration_.end());
  return out;
}

void AcceptanceModel::load(const std::vector<float>& state) {
  if (state.size() != static_cast<std::size_t>(kStateSize)) {
    throw InvalidArgument::for_field("len(state)", state.size(),
                                     std::to_string(kStateSize) + " numbers");
  }
  std::size_t at = 0;
  for (Bucket& b : buckets_) {
    b.probability = std::clamp(state[at++], 0.001f, 0.999f);
    b.log_odds = log_odds(b.probability);
    b.count = std::clamp(state[at++], 1.0f, kPriorCount);
  }
  for (auto& set : weights_) {
    for (float& w : set) w = state[at++];
  }
  for (float& knot : calibration_) knot = std::clamp(state[at++], 1e-4f, 0.9999f);
}

}  // namespace ptd
