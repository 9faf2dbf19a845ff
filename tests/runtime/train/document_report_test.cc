#include "runtime/train/document_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/temporary_directory.h"

// Tests the report on documents and masks that a run prints before its first step.
namespace terrace {
namespace {

using testing::HasSubstr;

template <typename T>
std::string report_file_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Returns a dataset of these ids and this mask, in windows of `length` tokens.
Dataset masked_windows(const TemporaryDirectory& directory, const std::vector<std::uint16_t>& ids,
                       const std::vector<std::uint8_t>& mask, std::int64_t length) {
  DatasetOptions options;
  options.data = {directory.write("ids.u16", report_file_of(ids))};
  directory.write("ids.u16.mask", report_file_of(mask));
  options.format = DataFormat::kRawU16;
  options.sequence_length = length;
  options.vocabulary = 300;
  options.validation_fraction = 0;
  return Dataset(options);
}

TEST(DocumentReport, ShowsIdsThatTheTokenizerDoesNotHave) {
  const TemporaryDirectory directory;
  const auto bytes = make_bytes_tokenizer();
  const std::string known =
      describe_documents(masked_windows(directory, {'a', 'b', 'c'}, {1, 0, 1}, 2), bytes.get());
  EXPECT_THAT(known, HasSubstr("\n  not trained on  \"ab\"\n  trained on      \"c\""));
  const std::string unknown =
      describe_documents(masked_windows(directory, {'a', 273, 'c'}, {1, 0, 1}, 2), bytes.get());
  EXPECT_THAT(unknown, HasSubstr("\n  not trained on  ids 97 273\n  trained on      ids 99"));
}

TEST(DocumentReport, ShowsTheFirstSampleWithATarget) {
  const TemporaryDirectory directory;
  // Each window has one target. With one of the two masks, the first window of the epoch has a
  // target that is masked out.
  int shown = 0;
  for (const std::vector<std::uint8_t>& mask :
       {std::vector<std::uint8_t>{0, 1, 0}, std::vector<std::uint8_t>{0, 0, 1}}) {
    const std::string text =
        describe_documents(masked_windows(directory, {'a', 'b', 'c'}, mask, 1), nullptr);
    EXPECT_THAT(text,
                HasSubstr(mask[1] == 1 ? "trained on      ids 98" : "trained on      ids 99"));
    shown += text.find("the first 1 samples have no token") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(shown, 1);
  const std::string none =
      describe_documents(masked_windows(directory, {'a', 'b', 'c'}, {1, 0, 0}, 1), nullptr);
  EXPECT_THAT(none, HasSubstr("none of the first 2 samples has a token to train on"));
}

}  // namespace
}  // namespace terrace
