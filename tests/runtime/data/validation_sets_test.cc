#include "runtime/data/validation_sets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/data/dataset.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

using Texts = std::vector<std::string>;
using Sets = std::vector<ValidationSet>;

void expect_refused(const Texts& texts, const std::string& says) {
  try {
    parse_validation_sets(texts);
    ADD_FAILURE() << "not refused: " << testing::PrintToString(texts);
  } catch (const ConfigError& refusal) {
    EXPECT_THAT(refusal.what(), testing::HasSubstr(says));
    EXPECT_FALSE(refusal.remedy().empty());
  }
}

TEST(ValidationSets, PathsOfANameAreASetAndThoseWithoutAreTheFirst) {
  EXPECT_EQ(parse_validation_sets({"a"}), (Sets{{"", {"a"}}}));
  EXPECT_EQ(parse_validation_sets({"x=a", "x=b", "c", "y-2.0_=d"}),
            (Sets{{"", {"c"}}, {"x", {"a", "b"}}, {"y-2.0_", {"d"}}}));
  EXPECT_TRUE(parse_validation_sets({}).empty());
}

TEST(ValidationSets, APathMayHaveAnEqualsSign) {
  EXPECT_EQ(parse_validation_sets({"./a=b", "/d/e=f"}), (Sets{{"", {"./a=b", "/d/e=f"}}}));
  EXPECT_EQ(parse_validation_sets({"x=a=b"}), (Sets{{"x", {"a=b"}}}));
}

TEST(ValidationSets, TheirTextsAreReadAsTheSameSets) {
  const Sets sets = parse_validation_sets({"c", "x=a", "x=b=c", "y=/d"});
  EXPECT_EQ(parse_validation_sets(texts_of(sets)), sets);
  EXPECT_EQ(texts_of({{"", {"a=b"}}}), Texts{"./a=b"});
}

TEST(ValidationSets, NamesThatWouldBeLostOrMixedUpAreRefused) {
  expect_refused({"=a"}, "name of the set is empty");
  expect_refused({"x="}, "the path is missing");
  expect_refused({""}, "the path is missing");
  expect_refused({"x=a", "y=b", "x=c"}, "the name x was already given");
  expect_refused({"x=a", "x=a"}, "has this path already");
  expect_refused({"a", "a"}, "has this path already");
  expect_refused({"two words=a"}, "letters, digits");
  expect_refused({std::string(65, 'n') + "=a"}, "more than 64");
}

TEST(ValidationSets, EachIsEvaluatedByItself) {
  const TemporaryDirectory directory;
  DatasetOptions options;
  options.data = {directory.write("text.txt", std::string(1000, 'a'))};
  options.vocabulary = 256;
  options.sequence_length = 4;
  options.validation_data = {
      {"b", {directory.write("b.txt", std::string(9, 'b'))}},
      {"cd",
       {directory.write("c.txt", std::string(5, 'c')), directory.write("d.txt", "ddddddddd")}}};
  const Dataset data(options);
  ASSERT_EQ(data.validation_sets(), 2U);
  EXPECT_EQ(data.validation_name(1), "cd");
  EXPECT_EQ(data.validation_tokens(0), 9);
  EXPECT_EQ(data.validation_tokens(1), 14);
  EXPECT_EQ(data.validation_samples(0), 2);
  EXPECT_EQ(data.validation_samples(1), 4) << "windows of all paths together";
  EXPECT_EQ(data.training_tokens(), 1000);
  EXPECT_NE(data.validation_hash(0), data.validation_hash(1));
  std::vector<std::int32_t> tokens(4);
  std::vector<std::int32_t> targets(4);
  EXPECT_EQ(data.fill_validation_batch(0, {tokens, targets}, 0), 4);
  EXPECT_EQ(tokens, std::vector<std::int32_t>(4, 'b'));
  EXPECT_EQ(data.fill_validation_batch(0, {tokens, targets}, 1), 4);
  EXPECT_EQ(tokens, std::vector<std::int32_t>(4, 'c'));
}

TEST(ValidationSets, ASetThatIsTooShortIsNamed) {
  const TemporaryDirectory directory;
  DatasetOptions options;
  options.data = {directory.write("text.txt", std::string(1000, 'a'))};
  options.vocabulary = 256;
  options.sequence_length = 4;
  options.validation_data = {{"b", {directory.write("b.txt", "bbb")}},
                             {"c", {directory.write("c.txt", "c")}}};
  try {
    const Dataset data(options);
    ADD_FAILURE() << "not refused";
  } catch (const ConfigError& refusal) {
    EXPECT_THAT(refusal.what(), testing::HasSubstr("the validation data c has 1 tokens"));
  }
}

}  // namespace
}  // namespace terrace
