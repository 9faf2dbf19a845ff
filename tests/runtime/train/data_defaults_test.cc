#include "runtime/train/data_defaults.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/config/train_config.h"
#include "runtime/data/dataset.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

// Ids with the ends of documents: the lengths are 1, 2, ..., `documents`.
class CountingSource final : public TokenSource {
 public:
  explicit CountingSource(std::int64_t documents) : documents_(documents) {}
  std::int64_t count() const override { return documents_ * (documents_ + 1) / 2; }
  void read(std::int64_t, std::span<std::int32_t> out) const override { std::ranges::fill(out, 1); }
  bool has_documents() const override { return true; }
  void visit_documents(FunctionRef<void(std::int64_t end)> visit) const override {
    for (std::int64_t i = 1; i <= documents_; ++i) visit(i * (i + 1) / 2);
  }

 private:
  std::int64_t documents_;
};

class DataDefaults : public testing::Test {
 protected:
  // Returns data of documents whose longest one has `longest` tokens.
  Dataset data_of(std::int64_t longest, std::int64_t most) const {
    DatasetOptions options;
    options.validation_fraction = 0;
    options.vocabulary = 2;
    options.longest_chosen_length = most;
    options.longest_window_length = 7;
    options.packing = packing_;
    return {options, std::make_unique<CountingSource>(longest), nullptr};
  }

  // Returns what is chosen for conversations of this data.
  std::string choose(const DocumentCounts& counts) {
    const Dataset data = data_of(100, 1000);
    DocumentCounts all = counts;
    if (all.tokens == 0) all.tokens = data.all_tokens();
    return choose_by_data(model_, data, all, options_);
  }

  TemporaryDirectory directory_;
  std::optional<Packing> packing_ = Packing::kDocuments;
  ModelConfig model_;
  TrainOptions options_;
};

TEST_F(DataDefaults, TheLengthFits95OfAHundredDocuments) {
  EXPECT_EQ(data_of(100, 1000).sequence_length(), 128);
  EXPECT_EQ(data_of(67, 1000).sequence_length(), 64);  // 64 of 67 fit
  EXPECT_EQ(data_of(68, 1000).sequence_length(), 128);
  EXPECT_EQ(data_of(500, 256).sequence_length(), 256);
  EXPECT_TRUE(data_of(100, 1000).chose_sequence_length());
  packing_ = Packing::kWindows;
  EXPECT_EQ(data_of(100, 1000).sequence_length(), 7);
  EXPECT_FALSE(data_of(100, 1000).chose_sequence_length());
}

TEST_F(DataDefaults, ConversationsHaveThreeEpochs) {
  model_.positions = 1000;
  const std::string told = choose({.documents = 5, .conversations = 5});
  EXPECT_EQ(options_.batch.num_train_epochs, 3);
  EXPECT_EQ(options_.batch.sequence_length, 128);
  EXPECT_NE(told.find("--sequence-length 128"), std::string::npos) << told;
  EXPECT_NE(told.find("--num-train-epochs 3"), std::string::npos) << told;
  // Random weights are not tuned.
  EXPECT_EQ(told.find("--learning-rate"), std::string::npos) << told;
  EXPECT_EQ(choose({.documents = 5, .conversations = 5}), "");
}

TEST_F(DataDefaults, OtherDataNeedsANumberOfSteps) {
  TERRACE_EXPECT_THROW_WITH(choose({.documents = 5, .conversations = 4}), ConfigError,
                            "neither --max-steps nor --num-train-epochs");
  // Files of ids beside the conversations may hold anything.
  TERRACE_EXPECT_THROW_WITH(choose({.documents = 5, .conversations = 5, .tokens = 10}), ConfigError,
                            "neither --max-steps nor --num-train-epochs");
  options_.batch.max_steps = 2;
  EXPECT_NO_THROW(choose({.documents = 5}));
  EXPECT_FALSE(options_.batch.num_train_epochs.has_value());
}

TEST_F(DataDefaults, StepsMayBeMissingForJsonAlone) {
  options_.data.data = {directory_.write("a.txt", "text")};
  TERRACE_EXPECT_THROW_WITH(check_steps_are_named(options_), ConfigError, "neither --max-steps");
  options_.batch.max_steps = 1;
  EXPECT_NO_THROW(check_steps_are_named(options_));
  options_.batch.max_steps = 0;
  options_.data.data = {directory_.write("a.json", "[{}]")};
  EXPECT_NO_THROW(check_steps_are_named(options_));
}

TEST_F(DataDefaults, WarnOfPaddingAndOfManyEpochs) {
  packing_ = Packing::kNone;
  const Dataset data = data_of(100, 1000);
  EXPECT_EQ(doubts_of_choices(options_, data, 100).size(), 1U);  // 61 % of 100 x 128 rows
  const auto doubts = doubts_of_choices(options_, data, 600);
  ASSERT_EQ(doubts.size(), 2U);
  EXPECT_NE(doubts[1].find("6.06 times"), std::string::npos) << doubts[1];
}

}  // namespace
}  // namespace terrace
