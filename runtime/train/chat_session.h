#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/log.h"
#include "runtime/chat/conversation_encoder.h"
#include "runtime/train/sampled_model.h"
#include "runtime/train/text_continuation.h"
#include "runtime/train/token_sampler.h"

namespace terrace {

struct ChatOptions {
  SampledModel::Source source;
  std::string chat_template = {};  // a file or a name; empty: the model's
  std::string system = {};         // the system text; empty: none
  ContinuationRules answers = {};  // of each answer
  int threads = 0;                 // 0: as many as the process may use
};

// A conversation with a model, which is held in memory. Each answer is generated from the whole
// conversation, rendered with the model's chat template. The keys and values of the beginning that
// a conversation shares with the one before are kept. For one thread.
class ChatSession {
 public:
  // Throws ConfigError where there is no chat template or it refuses the system text, OutOfMemory
  // where the model does not fit in memory, and what SampledModel throws.
  ChatSession(const ChatOptions& options, Log& log);

  // Returns the most tokens that a conversation can have: the model's positions, or fewer if memory
  // has no room for the keys and values of more.
  std::int64_t positions() const { return sampler_->positions(); }

  // Replaces the system text; "" removes it. Throws ConfigError where the template refuses the
  // text, and then changes nothing.
  void set_system(const std::string& text);
  // Forgets the conversation, but not the system text.
  void reset() { turns_.clear(); }

  // Passes the answer to `write` as it is made, and adds question and answer to the conversation.
  // If `stop` ends the answer, adds the part that was made; where there is none, adds nothing.
  // Throws ConfigError, and adds nothing, where the template refuses the conversation or it is
  // longer than positions(); NotFinite, and what `write` throws.
  Continuation answer(const std::string& question, const StopRequest& stop,
                      FunctionRef<void(std::string_view)> write);

  bool is_empty() const { return turns_.empty(); }
  // Returns the conversation as a line of JSON that training reads, {"messages": [...]}, without
  // the line break.
  std::string to_json() const;

 private:
  struct Message {
    std::string role;
    std::string content;  // valid UTF-8
  };
  using Messages = std::vector<Message>;

  static Conversation conversation_of(const Messages& messages);
  Messages messages_with(const std::string& question) const;
  std::vector<std::int32_t> prompt_ids(const Messages& messages) const;

  const SampledModel model_;
  const ConversationEncoder encoder_;
  ContinuationRules rules_;
  std::string system_;
  Messages turns_;  // questions and answers, by turns
  std::unique_ptr<TokenSampler> sampler_;
};

}  // namespace terrace
