#include "runtime/chat/conversation_encoder.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "runtime/jinja/json_value.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

// Marks nothing: turns are found by rendering parts of the conversation.
constexpr const char* kPlainTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr const char* kTwoTurns =
    R"({"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"}, {"role": "assistant", "content": "2"}]})";

class ConversationEncoding : public testing::Test {
 protected:
  // Returns the text of a conversation. The parts that are trained on stand in brackets.
  std::string encoded(const std::string& row, bool trains_on_all = false) {
    const ConversationEncoder encoder(choice_, *tokenizer_, trains_on_all);
    const ConversationEncoder::Encoded found = encoder.encode(conversation(row), "d.jsonl:1");
    EXPECT_EQ(found.ids.size(), found.mask.size());
    std::string text;
    bool was_trained = false;
    for (std::size_t i = 0; i < found.ids.size(); ++i) {
      const bool is_trained = found.mask[i] == 1;
      if (is_trained != was_trained) text += is_trained ? '[' : ']';
      was_trained = is_trained;
      text += static_cast<char>(found.ids[i]);
    }
    return was_trained ? text + ']' : text;
  }

  static Conversation conversation(const std::string& row) {
    return read_conversation(jinja::parse_json_value(row, "d.jsonl:1").mapping(), "d.jsonl:1");
  }

  std::string prompt(const std::string& row) {
    return ConversationEncoder(choice_, *tokenizer_, false).prompt(conversation(row), "d.jsonl:1");
  }

  TemporaryDirectory directory_;
  ChatTemplateChoice choice_ = {.model_directory = directory_.path("m"), .name = ""};
  std::unique_ptr<Tokenizer> tokenizer_ = make_bytes_tokenizer();
};

TEST_F(ConversationEncoding, TrainsOnTheAssistantsTurns) {
  directory_.write("m/chat_template.jinja", kPlainTemplate);
  EXPECT_EQ(encoded(kTwoTurns),
            "<user>one</user>\n<assistant>[1</assistant>\n]<user>two</user>\n<assistant>"
            "[2</assistant>\n]");
  EXPECT_EQ(encoded(kTwoTurns, true).front(), '[');
  EXPECT_EQ(prompt(R"({"messages": [{"role": "user", "content": "x"}]})"),
            "<user>x</user>\n<assistant>");
}

TEST_F(ConversationEncoding, LeavesOutTurnsThatTheDataMarks) {
  directory_.write("m/chat_template.jinja", kPlainTemplate);
  EXPECT_EQ(
      encoded(
          R"({"messages": [{"role": "user", "content": "a"}, 
              {"role": "assistant", "content": "b", "train": false},
              {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})"),
      "<user>a</user>\n<assistant>b</assistant>\n<user>c</user>\n<assistant>[d</assistant>\n]");
  TERRACE_EXPECT_THROW_WITH(encoded(R"({"messages": [{"role": "user", "content": "a"},
                 {"role": "assistant", "content": "b", "weight": 0}]})"),
                            ConfigError, "d.jsonl:1: no turn of the assistant to train on");
}

TEST_F(ConversationEncoding, TakesTheMarksOfATemplate) {
  choice_.name = "chatml";
  EXPECT_EQ(encoded(kTwoTurns),
            "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n[1<|im_end|>]\n"
            "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n[2<|im_end|>]\n");
  // Within the marks only the turn that is to be trained on counts.
  EXPECT_EQ(encoded(
                R"({"messages": [{"role": "user", "content": "a"}, 
              {"role": "assistant", "content": "b", "weight": 0},
              {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})"),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc"
            "<|im_end|>\n<|im_start|>assistant\n[d<|im_end|>]\n");
  choice_.name = "alpaca";
  EXPECT_EQ(encoded(R"({"instruction": "Say a.", "input": "", "output": "a"})"),
            "### Instruction:\nSay a.\n\n### Response:\n[a]\n\n");
}

TEST_F(ConversationEncoding, UsesTheModelsTemplates) {
  const char* const tokens = R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>",
      "model_max_length": 1000000000000000019884624838656,
      "chat_template": [
        {"name": "default", "template":
         "{{ bos_token }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"},
        {"name": "tool_use", "template":
         "{{ tools[0].function.name }}{% for m in messages %}|{{ m.content }}{% endfor %}"},
        {"name": "loud",
         "template": "{% for m in messages %}{{ m.content | upper }}.{% endfor %}"}]})";
  directory_.write("m/tokenizer_config.json", tokens);
  const std::string row =
      R"("messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "A"}])";
  EXPECT_EQ(encoded("{" + row + "}", true), "[<s>q</s>A</s>]");
  EXPECT_EQ(encoded("{" + row + R"(, "tools": [{"name": "tide"}]})", true), "[tide|q|A]");
  choice_.name = "loud";
  EXPECT_EQ(encoded("{" + row + "}", true), "[Q.A.]");
  choice_.name = directory_.write("own.jinja", "{{ messages[1].content }}");
  EXPECT_EQ(encoded("{" + row + "}", true), "[A]");
}

TEST_F(ConversationEncoding, RefusesByName) {
  TERRACE_EXPECT_THROW_WITH(encoded(kTwoTurns), ConfigError, "m has no chat template");
  choice_.name = "chatty";
  TERRACE_EXPECT_THROW_WITH(encoded(kTwoTurns), ConfigError,
                            "--chat-template chatty: neither a file nor a template");
  choice_.name = directory_.write("broken.jinja", "{% for m in %}");
  TERRACE_EXPECT_THROW_WITH(encoded(kTwoTurns), CorruptData, "broken.jinja: line 1 of the chat");
  choice_.name = directory_.write("strict.jinja", "{{ raise_exception('no users here') }}");
  TERRACE_EXPECT_THROW_WITH(
      encoded(kTwoTurns), ConfigError,
      "d.jsonl:1: the chat template (" + choice_.name + ") refuses it: no users here");
}

}  // namespace
}  // namespace terrace
