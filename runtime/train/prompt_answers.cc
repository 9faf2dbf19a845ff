#include "runtime/train/prompt_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "memory/host/host_limits.h"
#include "runtime/chat/conversation.h"
#include "runtime/chat/conversation_encoder.h"
#include "runtime/chat/row_keys.h"
#include "runtime/checkpoint/file_system.h"
#include "runtime/jinja/json_value.h"
#include "runtime/tokenizer/choose_tokenizer.h"

namespace terrace {
namespace {

constexpr std::int64_t kAnswerTokens = 100;
constexpr const char* kPromptForms =
    "give lines of text, or lines of JSON with \"prompt\" or a conversation";

// Returns a text on one line in quotes, whatever bytes it has.
std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(line);
  }
  return lines;
}

bool has_role(const jinja::Value& message, const char* role) {
  const jinja::Value* const found = message.mapping().find("role");
  return found != nullptr && *found == text_value(role);
}

// Returns the content of the last question; "" where it is no text.
std::string last_question(const Conversation& conversation) {
  const auto& messages = conversation.messages;
  const auto found = std::find_if(messages.rbegin(), messages.rend(),
                                  [](const auto& message) { return has_role(message, "user"); });
  if (found == messages.rend()) return "";
  const jinja::Value* const content = found->mapping().find("content");
  return content != nullptr && content->is_text() ? content->text() : "";
}

}  // namespace

PromptAnswers::PromptAnswers(const Setting& setting, Log& log)
    : setting_(setting), log_(log), tokenizer_(setting.tokenizer) {
  const std::string& file = setting_.options.run.sample_prompts;
  if (file.empty()) return;
  if (setting_.ranks > 1) {
    throw ConfigError(
        fmt::format("--sample-prompts with {} ranks: a run answers prompts only if it "
                    "has one rank",
                    setting_.ranks),
        "leave it out, and ask the checkpoints with terrace sample or terrace chat");
  }
  load_tokenizer();
  rules_.max_new_tokens = kAnswerTokens;
  rules_.choice.temperature = 0;
  rules_.stop = &setting_.stop;
  read_prompts();
  make_shape();
}

void PromptAnswers::load_tokenizer() {
  const TrainOptions& options = setting_.options;
  if (tokenizer_ == nullptr) {
    if (tokenizer_path(options.data.tokenizer, options.model.model).empty()) {
      throw ConfigError("--sample-prompts: the data has ids, and no tokenizer of them is known",
                        "name it with --tokenizer FILE");
    }
    own_tokenizer_ = choose_tokenizer(options.data.tokenizer, options.model.model, log_);
    tokenizer_ = own_tokenizer_.get();
  }
  end_ids_ = end_ids_of(*tokenizer_, {options.model.model});
}

void PromptAnswers::read_prompts() {
  const std::string& file = setting_.options.run.sample_prompts;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) {
    throw ConfigError(fmt::format("--sample-prompts {}: not a file", file), kPromptForms);
  }
  std::optional<bool> is_json;
  std::int64_t number = 0;
  for (const std::string& line : lines_of(read_whole_file(system_files(), file))) {
    ++number;
    const std::string_view bare = without_space_around(line);
    if (bare.empty()) continue;
    if (!is_json) is_json = bare.front() == '{';
    const std::string place = fmt::format("--sample-prompts {}:{}", file, number);
    prompts_.push_back(read_prompt(line, place, *is_json));
    const std::int64_t tokens = std::ssize(prompts_.back().ids);
    if (tokens > 0 && tokens <= setting_.model.positions) continue;
    throw ConfigError(
        fmt::format("{}: the prompt has {} tokens, but {} has {} positions", place, tokens,
                    setting_.model.name, setting_.model.positions),
        "give prompts of at least one token and at most as many as there are positions");
  }
  if (prompts_.empty()) {
    throw ConfigError(fmt::format("--sample-prompts {}: it has no prompts", file), kPromptForms);
  }
}

PromptAnswers::Prompt PromptAnswers::read_prompt(const std::string& line, const std::string& place,
                                                 bool is_json) const {
  if (!is_json) return text_prompt(line);
  const jinja::Value value = jinja::parse_json_value(line, place);
  if (!value.is_mapping()) {
    throw ConfigError(fmt::format("{}: not an object of JSON", place), kPromptForms);
  }
  if (!is_conversation(value.mapping()))
    return text_prompt(text_at(value.mapping(), "prompt", place));
  Conversation conversation = read_conversation(value.mapping(), place);
  // The last answer is the one that the model gives.
  auto& messages = conversation.messages;
  if (!messages.empty() && has_role(messages.back(), "assistant")) messages.pop_back();
  const ConversationEncoder encoder(
      {setting_.options.model.model, setting_.options.data.chat_template}, *tokenizer_, false);
  return {last_question(conversation), encoder.encode_prompt(conversation, place),
          encoder.end_of_turns()};
}

PromptAnswers::Prompt PromptAnswers::text_prompt(const std::string& text) const {
  Prompt prompt = {.text = text, .ids = {}};
  if (tokenizer_->begin_token()) prompt.ids.push_back(*tokenizer_->begin_token());
  tokenizer_->encode(text, prompt.ids);
  return prompt;
}

void PromptAnswers::make_shape() {
  const std::size_t longest = std::ranges::max(prompts_, {}, [](const Prompt& prompt) {
                                return prompt.ids.size();
                              }).ids.size();
  shape_.config = setting_.model;
  shape_.compute_type = setting_.compute_type;
  shape_.rope_of_text = true;
  shape_.positions =
      std::min(static_cast<std::int64_t>(longest) + kAnswerTokens - 1, setting_.model.positions);
  shape_.threads = setting_.options.tiers.threads.value_or(read_host_limits().usable_cpus());
}

std::size_t PromptAnswers::room_left(std::size_t room_bytes) const {
  if (is_empty()) return room_bytes;
  const std::size_t needed = TokenSampler::memory_bytes(shape_);
  if (needed <= room_bytes) return room_bytes - needed;
  throw OutOfMemory(
      fmt::format("--sample-prompts needs {} of host memory beside the training, for a copy of the "
                  "parameters and for keys and values, but only {} are free",
                  format_size(needed), format_size(room_bytes)),
      "raise --host-memory, or leave --sample-prompts out and ask the checkpoints with terrace "
      "sample");
}

void PromptAnswers::open_file(const std::string& run_dir, std::int64_t kept_step) {
  if (is_empty()) return;
  file_ = (std::filesystem::path(run_dir) / "samples.jsonl").string();
  std::string kept;
  if (kept_step > 0 && std::filesystem::exists(file_)) {
    for (const std::string& line : lines_of(read_whole_file(system_files(), file_))) {
      const auto row = nlohmann::json::parse(line, nullptr, false);
      const bool is_row =
          row.is_object() && row.contains("step") && row["step"].is_number_integer();
      if (is_row && row["step"].get<std::int64_t>() <= kept_step) kept += line + '\n';
    }
  }
  errno = 0;
  std::ofstream stream(file_, std::ios::binary | std::ios::trunc);
  stream << kept;
  stream.close();
  if (!stream) throw IoError({.operation = "write", .path = file_, .error_number = errno});
}

void PromptAnswers::show(std::int64_t step, RunSaver& saver, TrainConsole& console) {
  if (is_empty() || setting_.stop.is_made()) return;
  saver.with_parameters(step, [&](FetchParameter fetch) { answer(step, fetch, console); });
}

void PromptAnswers::answer(std::int64_t step, FetchParameter fetch, TrainConsole& console) {
  TokenSampler sampler(shape_, fetch);
  std::ofstream stream(file_, std::ios::binary | std::ios::app);
  for (const Prompt& prompt : prompts_) {
    std::string text;
    rules_.stop_texts.clear();
    if (!prompt.end.empty()) rules_.stop_texts.push_back(prompt.end);
    continue_text(sampler, {*tokenizer_, end_ids_}, prompt.ids, rules_,
                  [&](std::string_view piece) { text += piece; });
    if (setting_.stop.is_made()) return;  // the answer is not complete
    console.say(fmt::format("sample after step {}: {} -> {}", step, json_text(prompt.text),
                            json_text(text)));
    stream << fmt::format("{{\"step\": {}, \"prompt\": {}, \"text\": {}}}", step,
                          json_text(prompt.text), json_text(text))
           << std::endl;
  }
  if (!stream)
    log_.warning(fmt::format("{} cannot be written: it lacks samples of step {}", file_, step));
}

}  // namespace terrace
