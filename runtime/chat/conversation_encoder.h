#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/chat/chat_template.h"
#include "runtime/chat/conversation.h"
#include "runtime/chat/turn_finder.h"
#include "runtime/tokenizer/tokenizer.h"

namespace terrace {

// Where the templates of conversations come from.
struct ChatTemplateChoice {
  std::string model_directory;  // empty: a preset, which has no files
  std::string name;             // a file, or the name of a template; empty: the model's
};

// Renders conversations, and turns them into ids with a mask, which says what is trained on: the
// assistant's turns, with the tokens that end them. The whole text is tokenized at once, so the ids
// are those of apply_chat_template() of transformers. Thread-safe.
class ConversationEncoder {
 public:
  // Borrows the tokenizer. With `trains_on_all` everything is trained on. The templates are read
  // when they are needed first: data without conversations needs none.
  ConversationEncoder(ChatTemplateChoice choice, const Tokenizer& tokenizer, bool trains_on_all);

  struct Encoded {
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> mask;  // for each id, 1: trained on
  };
  // `place` says where the conversation is, and begins the messages of errors. Throws ConfigError
  // where there is no template, where it refuses the conversation or does not show all of it, and
  // where there is no turn to train on or its place is not known; CorruptData for a template that
  // is none; IoError.
  Encoded encode(const Conversation& conversation, const std::string& place) const;

  // Returns the texts of the templates, with and without tools, that conversations would be
  // rendered with; nothing where there is none. Throws IoError.
  std::string template_texts() const;

  // Returns the text from which the assistant's next turn is generated.
  std::string prompt(const Conversation& conversation, const std::string& place) const;
  // Returns the text with which the assistant's turns end in training, without white space around
  // it; "" if it is not known. A tokenizer of bytes has no end token, so the text alone tells where
  // an answer ends. Throws ConfigError where there is no template.
  std::string end_of_turns() const;
  // Returns a prompt's ids.
  std::vector<std::int32_t> encode_prompt(const Conversation& conversation,
                                          const std::string& place) const;

 private:
  struct Rendered {
    std::string text;
    std::vector<TextSpan> trained;
  };
  // A template, once it is read.
  struct LoadedTemplate {
    std::mutex mutex;
    std::unique_ptr<const ChatTemplate> chat_template;  // set once, under the mutex
  };

  const ChatTemplate& template_for(const Conversation& conversation,
                                   const std::string& place) const;
  Rendered render(const Conversation& conversation, const std::string& place) const;
  std::vector<TextSpan> find_turns(const Conversation& conversation,
                                   const std::vector<std::size_t>& turns, const std::string& text,
                                   const std::string& place) const;

  const ChatTemplateChoice choice_;
  const Tokenizer& tokenizer_;
  const bool trains_on_all_;
  mutable LoadedTemplate plain_;
  mutable LoadedTemplate with_tools_;
};

}  // namespace terrace
