#include "runtime/data/json_texts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/data/data_files.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

std::vector<std::string> all_texts(const std::string& path) {
  const std::unique_ptr<JsonTexts> texts = open_json_texts(path, json_layout_of_file(path));
  std::vector<std::string> all;
  while (const std::optional<std::string_view> text = texts->next()) all.emplace_back(*text);
  EXPECT_EQ(texts->next(), std::nullopt);
  return all;
}

TEST(JsonLayout, IsKnownByTheFirstLine) {
  EXPECT_EQ(json_layout("{\"a\": 1}\n{\"a\": 2}\n"), JsonLayout::kLines);
  EXPECT_EQ(json_layout("\n \xEF\xBB\xBF"), JsonLayout::kOther);
  EXPECT_EQ(json_layout("\xEF\xBB\xBF\n  {\"a\": 1}"), JsonLayout::kLines);
  EXPECT_EQ(json_layout("  [ {\"a\": 1},\n"), JsonLayout::kArray);
  EXPECT_EQ(json_layout("{\n  \"data\": [\n"), JsonLayout::kObject);
  // Damaged lines are lines.
  EXPECT_EQ(json_layout("{\"a\": \"cut\n{\"a\": \"b\"}\n"), JsonLayout::kLines);
  EXPECT_EQ(json_layout("{\"a\": 1} and more\n"), JsonLayout::kLines);
  EXPECT_EQ(json_layout("a text"), JsonLayout::kOther);
  EXPECT_EQ(json_layout(""), JsonLayout::kOther);
}

TEST(JsonTexts, AreTheItemsOfAnArray) {
  const TemporaryDirectory directory;
  const std::string path = directory.write(
      "a.json",
      "\xEF\xBB\xBF[ {\"a\": \"],}\\\"\\\\\"} ,\n\n{\n \"b\": [1, {\"c\": []}]\r\n}, 7 ]\n");
  EXPECT_EQ(all_texts(path), (std::vector<std::string>{"{\"a\": \"],}\\\"\\\\\"} ",
                                                       "{  \"b\": [1, {\"c\": []}]  }", "7 "}));
  EXPECT_TRUE(all_texts(directory.write("empty.json", "[]")).empty());
  // Longer than the piece that is read at a time.
  const std::string item = fmt::format("{{\"a\": \"{}\"}}", std::string(100'000, 'x'));
  EXPECT_EQ(all_texts(directory.write("long.json", fmt::format("[{},{}]", item, item))),
            (std::vector<std::string>{item, item}));
}

TEST(JsonTexts, AreTheLinesOfAFile) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("a.ndjson", "{\"a\": 1}\n\n{\"a\": 2}");
  EXPECT_EQ(all_texts(path), (std::vector<std::string>{"{\"a\": 1}", "", "{\"a\": 2}"}));
}

TEST(JsonTexts, RefuseABrokenArray) {
  const TemporaryDirectory directory;
  const auto expect = [&](const std::string& text, const std::string& message) {
    const std::string path = directory.write("a.json", text);
    TERRACE_EXPECT_THROW_WITH(all_texts(path), CorruptData, message);
  };
  expect("[{\"a\": 1}", "a.json: object 1 (jq '.[0]'): the file ends within it");
  expect("[{},,{}]", "object 2 (jq '.[1]'): a comma or bracket stands in its place");
  expect("[{},]", "object 2 (jq '.[1]'): a comma or bracket stands in its place");
  expect("[{\"a\": \"b\nc\"}]", "a text in it goes over the end of a line");

  expect("[{\"a\": 1", "a.json: object 1 (jq '.[0]'): the file ends within it");
  expect("[{}] \xFF", "object 2 (jq '.[1]'): the array has ended before it");
  expect("[\"\xFF\"]", "object 1 (jq '.[0]'): it is not UTF-8");
}

TEST(JsonDocuments, AreKnownByNameOrContent) {
  const TemporaryDirectory directory;
  EXPECT_TRUE(holds_json_documents("gone.ndjson.gz"));
  EXPECT_FALSE(holds_json_documents("gone.txt"));
  EXPECT_TRUE(holds_json_documents(directory.write("a.JSON", "{}\n{}\n")));
  EXPECT_TRUE(holds_json_documents(directory.write("b.jsonl.txt", "[{}]")));
  EXPECT_FALSE(holds_json_documents(directory.write("c.json", "words")));
  TERRACE_EXPECT_THROW_WITH(holds_json_documents(directory.write("d.json", "{\n}")), ConfigError,
                            "one JSON object on several lines");
}

}  // namespace
}  // namespace terrace
