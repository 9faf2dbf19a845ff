#include "runtime/chat/shown.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "runtime/chat/conversation.h"
#include "runtime/jinja/json_value.h"

namespace terrace {
namespace {

constexpr std::string_view kThinkingRow =
    R"({"messages":[{"role":"system","content":"be brief\n"},{"role":"user","content":"q"},
        {"role":"assistant","content":"<think>t1</think> a1 "},
        {"role":"assistant","content":"a2","thinking":"t2"}]})";

// Returns what is refused; "" if nothing is.
std::string refusal_of(std::string_view row, std::string_view text,
                       const std::vector<std::size_t>& turns) {
  const Conversation conversation =
      read_conversation(jinja::parse_json_value(row, "row").mapping(), "row");
  try {
    check_shown(conversation, turns, text, "x");
  } catch (const ConfigError& problem) {
    return problem.what();
  }
  return "";
}

TEST(Shown, ATextHasWhatIsTrainedOn) {
  EXPECT_EQ(refusal_of(kThinkingRow, "be brief q t1 a1", {2}), "");
  EXPECT_EQ(refusal_of(kThinkingRow, "q t1 a1", {2}),
            "x: message 0: the chat template does not show the system message; put its text into "
            "the first question, or name a template that shows it with --chat-template");
  EXPECT_EQ(refusal_of(kThinkingRow, "be brief q t1", {2}),
            "x: message 2: the chat template does not show its content as it is; name a template "
            "that shows it with --chat-template");
  EXPECT_EQ(refusal_of(kThinkingRow, "be brief q a1", {2}),
            "x: message 2: the chat template does not show the thought in \"content\"; leave the "
            "thought out, give the message \"train\": false, or name a template that shows it with "
            "--chat-template");
  EXPECT_NE(refusal_of(kThinkingRow, "be brief q t1 a1", {2, 3}).find("message 3: "),
            std::string::npos);
  EXPECT_NE(refusal_of(kThinkingRow, "be brief q t1 a1 a2", {2, 3}).find("thought in \"thinking\""),
            std::string::npos);
  EXPECT_EQ(refusal_of(kThinkingRow, "be brief q t1 a1 a2 t2", {2, 3}), "");
}

TEST(Shown, SwitchesInASystemMessageNeedNotBeShown) {
  const auto says = [](const char* content, std::string_view text) {
    const std::string row =
        std::string(R"({"messages":[{"role":"system","content":")") + content + "\"}]}";
    return refusal_of(row, text, {});
  };
  EXPECT_EQ(says("/no_think", ""), "");
  EXPECT_EQ(says("a /think\\nb", "a b"), "");
  EXPECT_NE(says("a /think b", "a"), "");
}

TEST(Shown, ATextHasTheCalls) {
  const auto missing = [](const char* message, std::string_view text) {
    return missing_part(jinja::parse_json_value(message, "message").mapping(), text);
  };
  const char* const message =
      R"({"role":"assistant","content":"a",
          "tool_calls":[{"id":"c1","function":{"name":"tide"}},{"name":"moon"}]})";
  EXPECT_EQ(missing(message, "a tide moon"), "");
  EXPECT_EQ(missing(message, "a c1 moon"), "");
  EXPECT_EQ(missing(message, "a moon"), "its call of \"tide\"");
  EXPECT_EQ(missing(message, "a tide"), "its call of \"moon\"");
  EXPECT_EQ(missing(message, "tide moon"), "its content as it is");
  EXPECT_EQ(missing(R"({"content":"a","tool_calls":["call",3]})", "a"), "");
}

TEST(Shown, ATextHasTheTools) {
  const std::string messages = R"({"messages":[{"role":"user","content":"q"}],"tools":)";
  const std::string says =
      "x: the chat template does not show the tool \"tide\"; leave the tools out, or name a "
      "template that shows it with --chat-template";
  for (const char* const tool :
       {R"([{"type":"function","function":{"name":"tide"}}]})", R"([{"name":"tide"}]})",
        R"([{"type":"function","name":"tide"}]})"}) {
    EXPECT_EQ(refusal_of(messages + tool, "q", {}), says);
    EXPECT_EQ(refusal_of(messages + tool, "q \"tide\"", {}), "");
  }
  EXPECT_EQ(refusal_of(messages + R"([{"description":"d"}]})", "q", {}), "");
}

}  // namespace
}  // namespace terrace
