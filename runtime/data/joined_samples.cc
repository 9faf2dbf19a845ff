#include <optional>

#include "base/check.h"
#include "base/hash.h"
#include "runtime/data/sample_mix.h"
#include "runtime/data/sample_set.h"

namespace terrace {
namespace {

class JoinedSamples final : public SampleSet {
 public:
  JoinedSamples(std::vector<std::unique_ptr<SampleSet>> sets, std::span<const double> weights)
      : sets_(std::move(sets)), weights_(weights.begin(), weights.end()) {
    if (!weights_.empty()) mix_.emplace(weights_);
    for (const auto& set : sets_) {
      if (const PackingCounts* const counts = set->counts()) {
        if (!counts_) counts_.emplace();
        counts_->add(*counts);
      }
    }
  }

  std::int64_t training_samples() const override {
    std::int64_t samples = 0;
    for (const auto& set : sets_) samples += set->training_samples();
    return samples;
  }
  std::int64_t evaluation_samples() const override {
    std::int64_t samples = 0;
    for (const auto& set : sets_) samples += set->evaluation_samples();
    return samples;
  }

  // Sets of the same length would have the same order, so each has a seed of its own.
  void fill_training(std::uint64_t seed, std::int64_t global_sample,
                     const SampleRows& rows) const override {
    constexpr std::uint64_t kOtherSeed = 0x9e3779b97f4a7c15U;
    const SampleMix::Draw draw = mix_.value().draw(global_sample);
    sets_[draw.set]->fill_training(seed + draw.set * kOtherSeed, draw.sample, rows);
  }

  std::int64_t fill_evaluation(std::int64_t index, const SampleRows& rows) const override {
    for (const auto& set : sets_) {
      const bool is_last = set == sets_.back();
      if (is_last || index < set->evaluation_samples()) return set->fill_evaluation(index, rows);
      index -= set->evaluation_samples();
    }
    TERRACE_CHECK(false);
  }

  std::uint64_t hash() const override {
    std::vector<std::uint64_t> hashes;
    for (const auto& set : sets_) hashes.push_back(set->hash());
    StreamingHash all;
    all.add(std::as_bytes(std::span(hashes)));
    all.add(std::as_bytes(std::span(weights_)));
    return all.value();
  }
  const PackingCounts* counts() const override { return counts_ ? &*counts_ : nullptr; }

 private:
  std::vector<std::unique_ptr<SampleSet>> sets_;
  std::vector<double> weights_;
  std::optional<SampleMix> mix_;
  std::optional<PackingCounts> counts_;
};

}  // namespace

std::unique_ptr<SampleSet> join_samples(std::vector<std::unique_ptr<SampleSet>> sets,
                                        std::span<const double> weights) {
  TERRACE_CHECK(!sets.empty());
  if (sets.size() == 1) return std::move(sets.front());
  return std::make_unique<JoinedSamples>(std::move(sets), weights);
}

}  // namespace terrace
