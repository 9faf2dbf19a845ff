#include "runtime/chat/chat_template.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace terrace {
namespace {

jinja::Template compile(const TemplateText& source) {
  try {
    return jinja::Template(source.text);
  } catch (const jinja::SyntaxError& error) {
    throw CorruptData(
        fmt::format("{}: line {} of the chat template: {}", source.path, error.line(),
                    error.what()),
        "name another template with --chat-template, or convert the data with `python -m "
        "terrace.data prepare`, which has all of Jinja (docs/conversations.md)");
  }
}

}  // namespace

ChatTemplate::ChatTemplate(TemplateText source, jinja::Mapping special_tokens)
    : source_(std::move(source)),
      special_tokens_(std::move(special_tokens)),
      template_(compile(source_)) {}

jinja::Template::Rendered ChatTemplate::render(const Conversation& conversation,
                                               const std::vector<jinja::Value>& messages,
                                               const std::string& place, bool is_prompt) const {
  try {
    jinja::Mapping values = special_tokens_;
    for (const auto& [key, value] : conversation.variables.entries()) values.set(key, value);
    values.set("messages", jinja::Value::list(messages));
    values.set("tools", conversation.tools);
    values.set("documents", jinja::Value());
    values.set("add_generation_prompt", jinja::Value(is_prompt));
    return template_.render(values);
  } catch (const jinja::RenderError& error) {
    throw ConfigError(
        fmt::format("{}: the chat template ({}) refuses it: {}", place, source_.path, error.what()),
        "give messages in the order that the template takes, or another template "
        "with --chat-template");
  }
}

}  // namespace terrace
