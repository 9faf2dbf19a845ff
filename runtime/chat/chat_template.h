#pragma once

#include <string>
#include <vector>

#include "runtime/chat/conversation.h"
#include "runtime/chat/model_template.h"
#include "runtime/jinja/template.h"

namespace terrace {

// A chat template with the special tokens that it may print. Thread-safe.
class ChatTemplate {
 public:
  // Throws CorruptData for a text that is not a template, with the line.
  ChatTemplate(TemplateText source, jinja::Mapping special_tokens);

  // Renders messages with the conversation's tools and variables. With `is_prompt` the text ends
  // with the beginning of the assistant's next turn. Throws ConfigError where the template refuses
  // them; `place` says where the conversation is.
  jinja::Template::Rendered render(const Conversation& conversation,
                                   const std::vector<jinja::Value>& messages,
                                   const std::string& place, bool is_prompt = false) const;

  bool marks_generated() const { return template_.marks_generated(); }
  const std::string& text() const { return source_.text; }
  const jinja::Mapping& special_tokens() const { return special_tokens_; }

 private:
  TemplateText source_;
  jinja::Mapping special_tokens_;
  jinja::Template template_;
};

}  // namespace terrace
