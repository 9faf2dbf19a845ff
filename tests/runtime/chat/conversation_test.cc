#include "runtime/chat/conversation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "runtime/jinja/json_value.h"

namespace terrace {
namespace {

using jinja::Mapping;
using jinja::Value;
using Json = nlohmann::ordered_json;  // compares the order of keys, too

Json json_of(const Value& value) {
  if (value.is_bool()) return value.boolean();
  if (value.is_integer()) return value.integer();
  if (value.is_float()) return value.number();
  if (value.is_text()) return value.text();
  if (value.is_list()) {
    Json list = Json::array();
    for (const Value& item : value.items()) list.push_back(json_of(item));
    return list;
  }
  if (!value.is_mapping()) return nullptr;
  Json object = Json::object();
  for (const auto& [key, item] : value.mapping().entries()) object[key.text()] = json_of(item);
  return object;
}

Value row_of(std::string_view text) { return jinja::parse_json_value(text, "row"); }

// Returns what the golden file says of a row, from the conversation that is read.
Json found_for(const Mapping& row) {
  Json found;
  found["row"] = json_of(Value(row));
  try {
    const Conversation conversation = read_conversation(row, "ROW");
    found["messages"] = json_of(Value::list(conversation.messages));
    if (!conversation.tools.is_none()) found["tools"] = json_of(conversation.tools);
    if (!conversation.variables.empty()) {
      found["variables"] = json_of(Value(conversation.variables));
    }
    EXPECT_EQ(conversation.trained.size(), conversation.messages.size());
    found["trained"] = Json::array();
    for (std::size_t i = 0; i < conversation.trained.size(); ++i) {
      if (conversation.trained[i]) found["trained"].push_back(i);
    }
    for (const Thought& thought : conversation.thoughts) {
      found["thoughts"].push_back({thought.message, thought.key, thought.text});
    }
  } catch (const ConfigError& problem) {
    found["error"] = problem.what();
  }
  return found;
}

// tests/python/forms_test.py expects the same of the package in python/.
TEST(Conversation, RowsAreReadAsInPython) {
  std::ifstream file(TERRACE_CONVERSATION_ROWS);
  int rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const Json expected = Json::parse(line);
    const Json found = found_for(row_of(expected.at("row").dump()).mapping());
    EXPECT_EQ(found.dump(1), expected.dump(1));
  }
  EXPECT_GT(rows, 100);
}

TEST(Conversation, TextsAndPromptsAndIdsAreNone) {
  for (const char* const text :
       {R"({"text": "a", "question": "q", "answer": "a"})", R"({"input_ids": [1], "input": "q"})",
        R"({"prompt": "a", "completion": "b", "instruction": "c"})", R"({"prompt": "a"})",
        R"({"completion": []})", R"({"question": "q"})", R"({"messages": null, "answer": "a"})",
        R"({})"}) {
    EXPECT_FALSE(is_conversation(row_of(text).mapping())) << text;
  }
}

TEST(Conversation, RowsWithMessagesOrQuestionsAreOnes) {
  for (const char* const text :
       {R"({"messages": 3, "text": "a"})", R"({"conversations": []})", R"({"conversation": []})",
        R"({"instruction": "i"})", R"({"question": "q", "answer": 1})",
        R"({"prompt": "q", "response": "r"})", R"({"prompt": [], "text": null})",
        R"({"prompt": [], "completion": "b"})", R"({"prompt": "a", "completion": []})",
        R"({"chosen": "a", "rejected": "b"})"}) {
    EXPECT_TRUE(is_conversation(row_of(text).mapping())) << text;
  }
}

std::string renamed(const char* message, std::string_view template_text) {
  return json_of(with_thoughts_named({row_of(message)}, template_text).front()).dump();
}

TEST(Thoughts, AreCopiedUnderTheKeyThatATemplateReads) {
  const char* const message = R"({"role":"assistant","thinking":"t"})";
  const std::string same = message;
  const std::string copied = R"({"role":"assistant","thinking":"t","reasoning_content":"t"})";
  EXPECT_EQ(renamed(message, "{{ m.reasoning_content }}"), copied);
  EXPECT_EQ(renamed(message, "{{ m['reasoning_content'] }}{{ enable_thinking }}"), copied);
  EXPECT_EQ(renamed(message, "{{ m.get(\"reasoning_content\") }} thinking"), copied);
  EXPECT_EQ(renamed(message, "{{ m.reasoning_content or m.thinking }}"), same);
  EXPECT_EQ(renamed(message, "reasoning_content {{ m.reasoning_contents }}"), same);
  EXPECT_EQ(renamed(message, "{{ m.reasoning }}"),
            R"({"role":"assistant","thinking":"t","reasoning":"t"})");
}

TEST(Thoughts, AreNotCopiedWhereTheyAreNotOneOfTheAssistant) {
  for (const char* const message :
       {R"({"role":"user","thinking":"t"})", R"({"role":"assistant","content":"a"})",
        R"({"role":"assistant","thinking":"t","reasoning":"u"})"}) {
    EXPECT_EQ(renamed(message, "{{ m.reasoning_content }}"), message);
  }
}

TEST(Thoughts, AnAnswerIsTheContentBehindThem) {
  const auto answer = [](const char* message) {
    return std::string(answer_in_content(row_of(message).mapping()));
  };
  EXPECT_EQ(answer(R"({"content":"<think>\nt\n</think>\n\na b\n"})"), "a b");
  EXPECT_EQ(answer(R"({"content":" a"})"), "a");
  EXPECT_EQ(answer(R"({"content":[{"text":"a"}]})"), "");
  EXPECT_EQ(answer(R"({"role":"assistant"})"), "");
}

}  // namespace
}  // namespace terrace
