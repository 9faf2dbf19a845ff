#pragma once

#include <string>
#include <vector>

#include "runtime/jinja/value.h"

// Finds the chat template of a model, as the files beside its weights have it.
namespace terrace {

struct TemplateText {
  std::string text;  // valid UTF-8
  std::string path;  // the file that has it, or the name of a template of ours
};

// Returns the texts of the model's special tokens by the names that templates use ("bos_token"), as
// special_tokens_map.json and tokenizer_config.json give them. Throws CorruptData, IoError.
jinja::Mapping special_tokens_of(const std::string& model_directory);

// Returns whether the directory's files have a template for conversations without tools. Throws
// CorruptData, IoError.
bool has_chat_template(const std::string& model_directory);

// Returns the template that is in additional_chat_templates/tool_use.jinja (for conversations with
// tools only), chat_template.jinja, chat_template.json or tokenizer_config.json: the first that is
// there. Among several with names it is "tool_use", if there are tools and there is one of that
// name, or else "default". Throws ConfigError where the directory has none; CorruptData, IoError.
TemplateText find_model_template(const std::string& model_directory, bool has_tools);

// Returns the template that --chat-template names: a file; or else a template of the model that has
// this name; or else one of ours ("chatml", "alpaca"). Throws ConfigError where there is none.
TemplateText find_named_template(const std::string& name, const std::string& model_directory);

}  // namespace terrace
