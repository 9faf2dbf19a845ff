#include "runtime/chat/conversation_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "runtime/chat/row_keys.h"
#include "runtime/chat/shown.h"
#include "runtime/chat/thoughts.h"

namespace terrace {
namespace {

constexpr const char* kMakeTokenizerJson =
    "make a tokenizer.json of it: AutoTokenizer of transformers, from_pretrained() and "
    "save_pretrained()";

TemplateText text_of_choice(const ChatTemplateChoice& choice, bool has_tools) {
  return choice.name.empty() ? find_model_template(choice.model_directory, has_tools)
                             : find_named_template(choice.name, choice.model_directory);
}

std::unique_ptr<const ChatTemplate> load_template(const ChatTemplateChoice& choice,
                                                  bool has_tools) {
  return std::make_unique<const ChatTemplate>(text_of_choice(choice, has_tools),
                                              special_tokens_of(choice.model_directory));
}

// Returns whether each id's part of the text lies at least partly in one of the spans. An id whose
// part is empty counts as the character behind it. Both are in order.
std::vector<std::uint8_t> mask_of(const std::vector<std::size_t>& ends,
                                  const std::vector<TextSpan>& spans) {
  std::vector<std::uint8_t> mask(ends.size(), 0);
  std::size_t at = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const std::size_t end = std::max(ends[i], begin + 1);
    while (at < spans.size() && begin >= spans[at].end) ++at;
    if (at == spans.size()) break;
    mask[i] = end > spans[at].begin ? 1 : 0;
    begin = ends[i];
  }
  return mask;
}

std::vector<std::size_t> turns_to_train_on(const Conversation& conversation) {
  std::vector<std::size_t> turns;
  for (std::size_t i = 0; i < conversation.trained.size(); ++i) {
    if (conversation.trained[i]) turns.push_back(i);
  }
  return turns;
}

bool trains_on_all_turns(const Conversation& conversation) {
  for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
    const jinja::Value* const role = conversation.messages[i].mapping().find("role");
    if (!conversation.trained[i] && role->text() == "assistant") return false;
  }
  return true;
}

// Returns the texts of tokens that may end a turn.
std::vector<std::string> ends_of_turns(const Tokenizer& tokenizer,
                                       const ChatTemplate& chat_template) {
  std::vector<std::string> ends = tokenizer.special_texts();
  for (const auto& [name, text] : chat_template.special_tokens().entries()) {
    if (!text.text().empty()) ends.push_back(text.text());
  }
  return ends;
}

}  // namespace

ConversationEncoder::ConversationEncoder(ChatTemplateChoice choice, const Tokenizer& tokenizer,
                                         bool trains_on_all)
    : choice_(std::move(choice)), tokenizer_(tokenizer), trains_on_all_(trains_on_all) {}

const ChatTemplate& ConversationEncoder::template_for(const Conversation& conversation,
                                                      const std::string& place) const {
  if (!tokenizer_.knows_special_texts()) {
    throw ConfigError(
        fmt::format("{}: the tokenizer is a SentencePiece .model, which does not know "
                    "the special tokens of a chat template",
                    place),
        kMakeTokenizerJson);
  }
  const bool has_tools = conversation.tools.is_true();
  LoadedTemplate& loaded = has_tools ? with_tools_ : plain_;
  const std::lock_guard lock(loaded.mutex);
  if (loaded.chat_template == nullptr) {
    try {
      loaded.chat_template = load_template(choice_, has_tools);
    } catch (const ConfigError& problem) {
      if (conversation.keys.empty()) throw;  // it does not come from data
      throw ConfigError(fmt::format("{} is a conversation ({}), but {}", place, conversation.keys,
                                    problem.what()),
                        "");
    }
  }
  return *loaded.chat_template;
}

ConversationEncoder::Rendered ConversationEncoder::render(const Conversation& conversation,
                                                          const std::string& place) const {
  const ChatTemplate& chat_template = template_for(conversation, place);
  const std::vector<jinja::Value> messages =
      with_thoughts_named(conversation.messages, chat_template.text());
  jinja::Template::Rendered rendered = chat_template.render(conversation, messages, place);
  const std::vector<std::size_t> turns = turns_to_train_on(conversation);
  check_shown(conversation, turns, rendered.text, place);
  if (trains_on_all_) return {rendered.text, {{0, rendered.text.size()}}};
  if (turns.empty()) {
    throw ConfigError(fmt::format("{}: no turn of the assistant to train on", place),
                      "leave the conversation out, or give --loss-on all");
  }
  std::vector<TextSpan> marked;
  for (const auto& [begin, end] : rendered.generated) marked.push_back({begin, end});
  const bool is_marked = chat_template.marks_generated();
  if (is_marked && std::ranges::all_of(marked, &TextSpan::is_empty)) {
    throw ConfigError(
        fmt::format("{}: the chat template marks nothing of it as generated, so there "
                    "is nothing to train on",
                    place),
        "correct its {% generation %} blocks, or leave the conversation out");
  }
  if (is_marked && trains_on_all_turns(conversation)) return {rendered.text, std::move(marked)};
  std::vector<TextSpan> found = find_turns(conversation, turns, rendered.text, place);
  if (is_marked) found = parts_within(marked, found);
  return {std::move(rendered.text), std::move(found)};
}

std::vector<TextSpan> ConversationEncoder::find_turns(const Conversation& conversation,
                                                      const std::vector<std::size_t>& turns,
                                                      const std::string& text,
                                                      const std::string& place) const {
  const ChatTemplate& chat_template = template_for(conversation, place);
  const TurnFinder finder(
      {.render =
           [&](const std::vector<jinja::Value>& messages, bool is_prompt) {
             return chat_template.render(conversation, messages, place, is_prompt).text;
           },
       .messages = with_thoughts_named(conversation.messages, chat_template.text()),
       .text = text,
       .ends = ends_of_turns(tokenizer_, chat_template)});
  std::vector<TextSpan> found;
  for (const std::size_t turn : turns) found.push_back(finder.find(turn, place));
  return found;
}

ConversationEncoder::Encoded ConversationEncoder::encode(const Conversation& conversation,
                                                         const std::string& place) const {
  const Rendered rendered = render(conversation, place);
  Encoded encoded;
  std::vector<std::size_t> ends;
  try {
    tokenizer_.encode_with_ends(rendered.text, encoded.ids, ends);
  } catch (const ConfigError& problem) {
    throw ConfigError(fmt::format("{}: {}", place, problem.what()), "");
  }
  encoded.mask = mask_of(ends, rendered.trained);
  return encoded;
}

std::string ConversationEncoder::template_texts() const {
  try {
    return text_of_choice(choice_, false).text + text_of_choice(choice_, true).text;
  } catch (const ConfigError&) {
    return "";  // there is no template
  } catch (const CorruptData&) {
    return "";  // the error comes when a template is needed
  }
}

std::string ConversationEncoder::prompt(const Conversation& conversation,
                                        const std::string& place) const {
  const ChatTemplate& chat_template = template_for(conversation, place);
  return chat_template
      .render(conversation, with_thoughts_named(conversation.messages, chat_template.text()), place,
              true)
      .text;
}

std::string ConversationEncoder::end_of_turns() const {
  constexpr std::string_view kAnswer = "answer";
  const std::string place = "a conversation of one turn";
  Conversation conversation;
  for (const auto& [role, content] :
       {std::pair("user", "question"), std::pair("assistant", "answer")}) {
    jinja::Mapping message;
    message.set("role", text_value(role));
    message.set("content", text_value(content));
    conversation.messages.emplace_back(std::move(message));
  }
  conversation.trained = {false, true};
  template_for(conversation, place);
  Encoded encoded;
  try {
    encoded = encode(conversation, place);
  } catch (const ConfigError&) {
    return "";  // the template needs other messages, or does not show where its turns end
  }
  std::vector<std::int32_t> taught;
  for (std::size_t i = 0; i < encoded.ids.size(); ++i) {
    if (encoded.mask[i] != 0) taught.push_back(encoded.ids[i]);
  }
  const std::string text = tokenizer_.decode(taught);
  const std::size_t at = text.rfind(kAnswer);
  if (at == std::string::npos) return "";
  return std::string(without_space_around(std::string_view(text).substr(at + kAnswer.size())));
}

std::vector<std::int32_t> ConversationEncoder::encode_prompt(const Conversation& conversation,
                                                             const std::string& place) const {
  std::vector<std::int32_t> ids;
  tokenizer_.encode(prompt(conversation, place), ids);
  return ids;
}

}  // namespace terrace
