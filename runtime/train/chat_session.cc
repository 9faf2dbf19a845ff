#include "runtime/train/chat_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "memory/host/host_limits.h"
#include "runtime/chat/row_keys.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace {
namespace {

constexpr const char* kPlace = "the chat";

ChatTemplateChoice template_choice(const SampledModel& model, const ChatOptions& options) {
  std::optional<ChatTemplateChoice> choice = model.chat_template(options.chat_template);
  if (choice) return *std::move(choice);
  throw ConfigError(
      fmt::format("{}: no chat template in chat_template.jinja or tokenizer_config.json",
                  options.source.directory),
      "name the template that the model was trained with: --chat-template chatml, alpaca or a "
      "file; terrace sample continues texts without a template");
}

// Returns the largest number of positions, up to the model's, for which the model and the keys and
// values fit in memory.
std::int64_t fitting_positions(TokenSampler::Shape shape) {
  const std::size_t usable = read_host_limits().usable_bytes();
  const auto fits = [&](std::int64_t positions) {
    shape.positions = positions;
    return TokenSampler::memory_bytes(shape) <= usable;
  };
  const std::int64_t most = shape.config.positions;
  if (fits(most)) return most;
  std::int64_t fitting = 0;
  for (std::int64_t failing = most; failing - fitting > 1;) {
    const std::int64_t tried = fitting + (failing - fitting) / 2;
    (fits(tried) ? fitting : failing) = tried;
  }
  if (fitting > 0) return fitting;
  throw OutOfMemory(fmt::format("{} does not fit in memory: it needs {}, but only {} can be used",
                                shape.config.name, format_size(TokenSampler::memory_bytes(shape)),
                                format_size(usable)),
                    "chat on a machine with more memory; terrace sample --nvme DIR reads "
                    "parameters from a drive");
}

std::unique_ptr<TokenSampler> make_chat_sampler(const SampledModel& model, int threads) {
  TokenSampler::Shape shape = {.config = model.config(), .compute_type = model.compute_type()};
  shape.rope_of_text = true;
  shape.threads = threads > 0 ? threads : read_host_limits().usable_cpus();
  shape.positions = fitting_positions(shape);
  return std::make_unique<TokenSampler>(
      shape, [&](const UnitLayout& unit, const ParameterTensor& tensor, std::int64_t begin,
                 std::span<float> out) { model.read(unit, tensor, begin, out); });
}

}  // namespace

ChatSession::ChatSession(const ChatOptions& options, Log& log)
    : model_(options.source, log),
      encoder_(template_choice(model_, options), model_.tokenizer(), false),
      rules_(options.answers) {
  set_system(options.system);
  const std::string end = encoder_.end_of_turns();
  if (!end.empty()) rules_.stop_texts.push_back(end);
  sampler_ = make_chat_sampler(model_, options.threads);
}

Conversation ChatSession::conversation_of(const Messages& messages) {
  Conversation conversation;
  for (const Message& message : messages) {
    jinja::Mapping keys;
    keys.set("role", text_value(message.role));
    keys.set("content", text_value(message.content));
    conversation.messages.emplace_back(std::move(keys));
    conversation.trained.push_back(message.role == "assistant");
  }
  return conversation;
}

ChatSession::Messages ChatSession::messages_with(const std::string& question) const {
  Messages messages;
  if (!system_.empty()) messages.push_back({"system", system_});
  messages.insert(messages.end(), turns_.begin(), turns_.end());
  messages.push_back({"user", replace_invalid_utf8(question)});
  return messages;
}

std::vector<std::int32_t> ChatSession::prompt_ids(const Messages& messages) const {
  std::vector<std::int32_t> ids = encoder_.encode_prompt(conversation_of(messages), kPlace);
  if (!ids.empty()) return ids;
  throw ConfigError("the chat template makes no text of the conversation",
                    "name another template with --chat-template");
}

void ChatSession::set_system(const std::string& text) {
  std::string before = std::exchange(system_, replace_invalid_utf8(text));
  try {
    prompt_ids(messages_with("question"));
  } catch (...) {
    system_ = std::move(before);
    throw;
  }
}

Continuation ChatSession::answer(const std::string& question, const StopRequest& stop,
                                 FunctionRef<void(std::string_view)> write) {
  Messages messages = messages_with(question);
  std::vector<std::int32_t> ids = prompt_ids(messages);
  if (std::ssize(ids) > positions()) {
    const bool is_memory = positions() < model_.config().positions;
    throw ConfigError(
        fmt::format(
            "with this question the conversation has {} tokens, but {}", ids.size(),
            is_memory ? fmt::format("memory has room for only {}", positions())
                      : fmt::format("{} has only {} positions", model_.config().name, positions())),
        "/reset forgets the conversation so far; or ask a shorter question");
  }
  rules_.stop = &stop;
  std::string text;
  const auto show = [&](std::string_view piece) {
    text += piece;
    write(piece);
  };
  const Continuation made = continue_text(*sampler_, {model_.tokenizer(), model_.end_ids()},
                                          std::move(ids), rules_, show);
  rules_.first_draw += static_cast<std::uint64_t>(made.new_tokens);
  if (made.end == SampleEnd::kStopped && text.empty()) return made;
  turns_.push_back(messages.back());
  turns_.push_back({"assistant", replace_invalid_utf8(text)});
  return made;
}

std::string ChatSession::to_json() const {
  using Json = nlohmann::ordered_json;
  Json messages = Json::array();
  if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
  for (const Message& turn : turns_) {
    messages.push_back({{"role", turn.role}, {"content", turn.content}});
  }
  return Json{{"messages", std::move(messages)}}.dump();
}

}  // namespace terrace
