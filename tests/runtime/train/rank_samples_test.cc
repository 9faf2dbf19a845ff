#include "runtime/train/rank_samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "runtime/model/rope_table.h"

namespace terrace {
namespace {

// A source in which token i is i. Reads beyond `readable` fail.
class NumberedTokens : public TokenSource {
 public:
  NumberedTokens(std::int64_t count, const std::int64_t& readable)
      : count_(count), readable_(readable) {}
  std::int64_t count() const override { return count_; }
  void read(std::int64_t offset, std::span<std::int32_t> out) const override {
    if (offset + std::ssize(out) > readable_) throw CorruptData("behind the end", "read less");
    std::iota(out.begin(), out.end(), static_cast<std::int32_t>(offset));
  }

 private:
  std::int64_t count_;
  const std::int64_t& readable_;
};

// Such a source, in which every document has three tokens, two of which have a target.
class NumberedDocuments final : public NumberedTokens {
 public:
  using NumberedTokens::NumberedTokens;
  bool has_documents() const override { return true; }
  void visit_documents(FunctionRef<void(std::int64_t end)> visit) const override {
    for (std::int64_t end = 3; end <= count(); end += 3) visit(end);
  }
};

// Tests micro-batches of 2 sequences of 4 positions. There are 64 training tokens and 24 validation
// tokens.
class RankSamplesTest : public testing::Test {
 protected:
  static constexpr std::int64_t kPositions = 4;

  // Returns samples that evaluate `evaluated` windows, or all windows if it is 0.
  RankSamples samples_of(std::int64_t micro_batches, std::int64_t rank, std::int64_t ranks,
                         std::int64_t evaluated = 0) const {
    return {data_,
            {{2, kPositions}, micro_batches, rank, ranks},
            {evaluated == 0 ? data_.validation_samples() : evaluated}};
  }

  std::int64_t readable_ = 1000;
  static DatasetOptions options() {
    DatasetOptions options;
    options.vocabulary = 1000;
    options.sequence_length = kPositions;
    options.seed = 3;
    return options;
  }

  Dataset data_{options(), std::make_unique<NumberedTokens>(64, readable_),
                std::make_unique<NumberedTokens>(24, readable_)};
};

// Returns each sequence followed by its targets, for one micro-batch after the other.
std::vector<std::vector<std::int32_t>> sequences_of(std::span<const std::int32_t> step) {
  std::vector<std::vector<std::int32_t>> found;
  const std::size_t rows = 2 * 4;
  for (std::size_t m = 0; m < step.size(); m += 2 * rows) {
    for (std::size_t s = 0; s < rows; s += 4) {
      const auto tokens = step.subspan(m + s, 4);
      const auto targets = step.subspan(m + rows + s, 4);
      found.emplace_back(tokens.begin(), tokens.end());
      found.back().insert(found.back().end(), targets.begin(), targets.end());
    }
  }
  return found;
}

TEST_F(RankSamplesTest, RanksTogetherHaveTheSamplesOfOneAndInTheirOrder) {
  RankSamples alone = samples_of(4, 0, 1);
  ASSERT_EQ(alone.share().of_evaluation(), 8);
  for (const std::int64_t first : {0, 8}) {
    alone.fetch(first, {0, 4, 4});
    std::vector<std::vector<std::int32_t>> together;
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      RankSamples of_rank = samples_of(2, rank, 2);
      EXPECT_EQ(of_rank.share().of_evaluation(), 8);
      of_rank.fetch(first, of_rank.share().equal_part(2));
      const auto part = sequences_of(of_rank.tokens());
      ASSERT_EQ(part.size(), 4U);
      together.insert(together.end(), part.begin(), part.end());
    }
    EXPECT_EQ(together, sequences_of(alone.tokens()));
  }
}

// A step may have fewer micro-batches. Ranks then have the samples from that step's first one on,
// without gaps, and the tokens of the others are 0.
TEST_F(RankSamplesTest, AStepMayHaveFewerMicroBatches) {
  RankSamples alone = samples_of(2, 0, 1);
  RankSamples second = samples_of(3, 1, 2);
  second.fetch(4, {3, 3, 6});
  second.fetch(4, {1, 1, 2});
  alone.fetch(4, {0, 2, 2});
  const auto all = sequences_of(alone.tokens());
  const auto part = sequences_of(second.tokens());
  ASSERT_EQ(part.size(), 6U);
  EXPECT_EQ(part[0], all[2]);
  EXPECT_EQ(part[1], all[3]);
  for (std::size_t unused = 2; unused < 6; ++unused) {
    EXPECT_EQ(part[unused], std::vector<std::int32_t>(2 * kPositions, 0));
  }
}

TEST_F(RankSamplesTest, ValidationIsCountedToItsEndByAllRanksTogether) {
  std::int64_t counted = 0;
  for (std::int64_t first = 0; first < data_.validation_samples(); first += 4) {
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      RankSamples::Validation batch;
      samples_of(1, rank, 2).fill_validation(0, first, batch);
      ASSERT_EQ(batch.tokens.size(), 16U);
      EXPECT_EQ(std::ranges::count_if(std::span(batch.tokens).subspan(8),
                                      [](std::int32_t target) { return target >= 0; }),
                batch.counted_targets);
      counted += batch.counted_targets;
    }
  }
  EXPECT_EQ(counted, data_.validation_tokens() - 1);
}

// A dry run may plan micro-batches that are too large for any machine's memory.
TEST_F(RankSamplesTest, WhatIsEvaluatedIsCheckedInTheMemoryOfASample) {
  constexpr std::int64_t kSequences = std::int64_t{1} << 50;
  const RankSamples samples(data_, {{kSequences, kPositions}, 4, 0, 1},
                            {data_.validation_samples()});
  EXPECT_NO_THROW(samples.check_evaluated());
  readable_ = 0;
  EXPECT_THROW(samples.check_evaluated(), CorruptData) << "a sample is read";
}

// The split has 6 windows, the last of which is short. An evaluation of 3 windows takes every
// second one, with any number of ranks.
TEST_F(RankSamplesTest, AnEvaluationOfFewSamplesTakesThemFromAllOverTheSplit) {
  ASSERT_EQ(data_.validation_samples(), 6);
  for (const std::int64_t ranks : {1, 2}) {
    std::vector<std::int32_t> first_tokens;
    std::int64_t counted = 0;
    for (std::int64_t first = 0; first < 3; first += 2 * ranks) {
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        RankSamples::Validation batch;
        samples_of(1, rank, ranks, 3).fill_validation(0, first, batch);
        counted += batch.counted_targets;
        for (const auto& sequence : sequences_of(batch.tokens)) {
          if (sequence[kPositions] >= 0) first_tokens.push_back(sequence[0]);
        }
      }
    }
    EXPECT_EQ(first_tokens, (std::vector<std::int32_t>{0, 8, 16}));
    EXPECT_EQ(counted, 3 * kPositions);
  }
}

// A source of 24 tokens in which only the last one is a target.
class LastTokenCounts final : public TokenSource {
 public:
  std::int64_t count() const override { return 24; }
  void read(std::int64_t offset, std::span<std::int32_t> out) const override {
    std::iota(out.begin(), out.end(), static_cast<std::int32_t>(offset));
  }
  bool has_mask() const override { return true; }
  void read_mask(std::int64_t offset, std::span<std::uint8_t> out) const override {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = offset + static_cast<std::int64_t>(i) == 23 ? 1 : 0;
    }
  }
};

TEST_F(RankSamplesTest, AnEvaluationWithoutATargetIsRefused) {
  DatasetOptions masked = options();
  masked.uses_mask = true;
  const Dataset data(masked, std::make_unique<NumberedTokens>(64, readable_),
                     std::make_unique<LastTokenCounts>());
  ASSERT_EQ(data.validation_samples(), 6);
  const SampleShare share = {{2, kPositions}, 1, 0, 1};
  EXPECT_THROW(RankSamples(data, share, {3}).check_evaluated(), ConfigError);
  RankSamples(data, share, {6}).check_evaluated();
  samples_of(1, 0, 1, 3).check_evaluated();
}

TEST_F(RankSamplesTest, WhatCannotBeReadIsRememberedAndThrownWhenAsked) {
  RankSamples samples = samples_of(1, 0, 1);
  samples.fetch(0, samples.share().equal_part(1));
  EXPECT_FALSE(samples.has_problem());
  samples.rethrow_problem();
  const std::vector<std::int32_t> before(samples.tokens().begin(), samples.tokens().end());
  readable_ = 0;
  samples.fetch(0, samples.share().equal_part(1));  // these samples have been fetched already
  EXPECT_FALSE(samples.has_problem());
  EXPECT_TRUE(std::ranges::equal(samples.tokens(), before));
  samples.fetch(2, samples.share().equal_part(1));
  EXPECT_TRUE(samples.has_problem());
  EXPECT_THROW(samples.rethrow_problem(), CorruptData);

  RankSamples evaluating = samples_of(1, 0, 1);
  RankSamples::Validation batch;
  evaluating.fill_validation(0, 0, batch);
  EXPECT_EQ(batch.counted_targets, 0);
  EXPECT_THROW(evaluating.rethrow_problem(), CorruptData);
}

// Samples are numbered over micro-batches, ranks and steps; a number has 31 bits. An evaluation
// numbers none, so that nothing is dropped in it.
TEST_F(RankSamplesTest, NumberSamplesOverTheRun) {
  const auto list_of = [](std::span<const std::int32_t> tokens, std::size_t m) {
    const std::size_t list = 2 * kPositions;
    const auto samples = tokens.subspan(m * 3 * list + 2 * list, list);
    return std::vector<std::int32_t>(samples.begin(), samples.end());
  };
  SampleShare share = {{2, kPositions}, 2, 1, 3};
  share.batch.has_samples = true;
  RankSamples samples(data_, share, {data_.validation_samples()});
  samples.fetch(24, samples.share().equal_part(2));
  EXPECT_EQ(list_of(samples.tokens(), 0),
            (std::vector<std::int32_t>{28, 28, 28, 28, 29, 29, 29, 29}));
  EXPECT_EQ(list_of(samples.tokens(), 1),
            (std::vector<std::int32_t>{30, 30, 30, 30, 31, 31, 31, 31}));
  samples.fetch((std::int64_t{1} << 31) - 5, samples.share().equal_part(2));
  EXPECT_EQ(list_of(samples.tokens(), 0).front(), (std::int64_t{1} << 31) - 1);
  EXPECT_EQ(list_of(samples.tokens(), 0).back(), 0);
  RankSamples::Validation batch;
  samples.fill_validation(0, 0, batch);
  EXPECT_EQ(list_of(batch.tokens, 1), std::vector<std::int32_t>(2 * kPositions, -1));
}

// Where sequences have documents, the list of samples comes after the four other lists.
TEST_F(RankSamplesTest, NumberSamplesBesideDocuments) {
  DatasetOptions packed = options();
  packed.packing = Packing::kDocuments;
  const Dataset data(packed, std::make_unique<NumberedDocuments>(63, readable_),
                     std::make_unique<NumberedDocuments>(24, readable_));
  SampleShare share = {{2, kPositions}, 2, 0, 1};
  share.batch.has_documents = true;
  share.batch.has_samples = true;
  RankSamples samples(data, share, {data.validation_samples()});
  samples.fetch(8, samples.share().equal_part(2));
  constexpr std::size_t kRows = 2 * kPositions;
  ASSERT_EQ(samples.tokens().size(), 2 * 5 * kRows);
  const auto list_of = [](std::span<const std::int32_t> tokens, std::size_t m, std::size_t list) {
    const auto numbers = tokens.subspan((5 * m + list) * kRows, kRows);
    return std::vector<std::int32_t>(numbers.begin(), numbers.end());
  };
  EXPECT_EQ(list_of(samples.tokens(), 0, 2), (std::vector<std::int32_t>{0, 1, 0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(list_of(samples.tokens(), 0, 4), (std::vector<std::int32_t>{8, 8, 8, 8, 9, 9, 9, 9}));
  EXPECT_EQ(list_of(samples.tokens(), 1, 4),
            (std::vector<std::int32_t>{10, 10, 10, 10, 11, 11, 11, 11}));
  RankSamples::Validation batch;
  samples.fill_validation(0, 0, batch);
  EXPECT_EQ(list_of(batch.tokens, 1, 4), std::vector<std::int32_t>(kRows, -1));
}

// In each micro-batch the angles come after the token ids and the list of samples. They are
// computed for the lengths of the micro-batch's windows.
class RankSamplesWithAngles : public RankSamplesTest, public testing::WithParamInterface<bool> {};

TEST_P(RankSamplesWithAngles, HasTheAnglesOfEachRow) {
  constexpr std::int64_t kWidth = 4;
  const RopeOptions rope = {.type = RopeType::kDynamic, .factor = 2.0, .positions = 2};
  SampleShare share = {{2, kPositions}, 2, 0, 1, {rope}};
  share.batch.row_angles = kWidth;
  share.batch.has_samples = GetParam();
  RankSamples samples(data_, share, {data_.validation_samples()});
  const std::size_t numbers = (GetParam() ? 3 : 2) * 2 * kPositions;
  const std::size_t step = numbers + 2 * kPositions * kWidth;  // of one micro-batch
  const auto angles_of = [&](std::span<const std::int32_t> tokens, std::size_t m, std::size_t s) {
    std::vector<float> angles(kPositions * kWidth);
    std::memcpy(angles.data(), tokens.data() + m * step + numbers + s * angles.size(),
                angles.size() * sizeof(float));
    return angles;
  };
  std::vector<float> whole(kPositions * kWidth);
  fill_rope_table(rope, kPositions, kWidth, whole);
  samples.fetch(0, samples.share().equal_part(2));
  ASSERT_EQ(samples.tokens().size(), 2 * step);
  for (std::size_t m = 0; m < 2; ++m) {
    for (std::size_t s = 0; s < 2; ++s) EXPECT_EQ(angles_of(samples.tokens(), m, s), whole);
  }
  // The last window of 24 tokens has three targets and one row of padding.
  RankSamples::Validation batch;
  samples.fill_validation(0, 4, batch);
  std::vector<float> last(3 * kWidth);
  fill_rope_table(rope, 3, kWidth, last);
  std::vector<float> found = angles_of(batch.tokens, 0, 1);
  found.resize(last.size());
  EXPECT_EQ(found, last);
  EXPECT_NE(found, std::vector<float>(whole.begin(), whole.begin() + 3 * kWidth));
}

INSTANTIATE_TEST_SUITE_P(Samples, RankSamplesWithAngles, testing::Bool());

}  // namespace
}  // namespace terrace
