#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/chat/conversation_encoder.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

std::string end_of(const ChatTemplateChoice& choice) {
  const auto tokenizer = make_bytes_tokenizer();
  return ConversationEncoder(choice, *tokenizer, false).end_of_turns();
}

TEST(EndOfTurns, IsTheTextThatTrainingTeachesBehindAnAnswer) {
  const TemporaryDirectory directory;
  EXPECT_EQ(end_of({"", "chatml"}), "<|im_end|>");
  EXPECT_EQ(end_of({directory.path(""), "alpaca"}), "") << "no token ends a turn";
  directory.write("model/tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_EQ(end_of({directory.path("model"), "alpaca"}), "</s>");
  const std::string unmarked = directory.write("unmarked.jinja", R"(
{%- for message in messages %}[{{ message.role }}]{{ message.content }}[end]
{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %})");
  EXPECT_EQ(end_of({"", unmarked}), "[end]");
}

TEST(EndOfTurns, IsUnknownWhereTheTemplateRefusesOneTurn) {
  const TemporaryDirectory directory;
  const std::string strict =
      directory.write("strict.jinja", "{{ raise_exception('there must be a system message') }}");
  EXPECT_EQ(end_of({"", strict}), "");
  TERRACE_EXPECT_THROW_WITH(end_of({directory.path(""), ""}), ConfigError, "no chat template");
}

}  // namespace
}  // namespace terrace
