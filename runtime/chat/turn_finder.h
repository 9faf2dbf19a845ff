#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/jinja/value.h"

namespace terrace {

// A part of a text, in bytes.
struct TextSpan {
  std::size_t begin = 0;
  std::size_t end = 0;

  bool is_empty() const { return begin == end; }
};

// Finds where the assistant's turns stand in a rendered conversation whose template does not mark
// them. python/terrace/data/spans.py does the same, and says how. For one thread.
class TurnFinder {
 public:
  // Renders messages, or the prompt for the assistant's next turn. Throws ConfigError.
  using Render =
      std::function<std::string(const std::vector<jinja::Value>& messages, bool is_prompt)>;

  struct Parts {
    Render render;
    std::vector<jinja::Value> messages;
    std::string text;               // the messages, rendered
    std::vector<std::string> ends;  // the texts of tokens that may end a turn
  };
  explicit TurnFinder(Parts parts);

  // Returns the span of the message's turn in the text. Throws ConfigError where it is not known;
  // `place` says where the conversation is.
  TextSpan find(std::size_t index, const std::string& place) const;

 private:
  struct Around {
    std::string before;
    std::string behind;
  };
  using Messages = std::vector<jinja::Value>;

  Messages messages_before(std::size_t index) const;
  Messages joined(const Messages& before, const jinja::Value& turn, bool has_later,
                  std::size_t index) const;
  std::optional<std::size_t> find_begin(std::size_t index) const;
  std::optional<std::size_t> find_end(std::size_t index, std::size_t begin) const;
  std::optional<std::size_t> size_of_end(const std::string& last, const std::string& follows,
                                         bool has_calls) const;
  std::optional<std::string> variation(const Messages& messages, bool is_prompt) const;
  std::optional<Around> around(std::string_view word, const Messages& messages,
                               bool is_prompt) const;
  std::size_t without_space_behind(std::size_t begin, std::size_t end) const;

  Parts parts_;
};

// Returns the parts of the spans that lie in one of the limits. Both are in order.
std::vector<TextSpan> parts_within(const std::vector<TextSpan>& spans,
                                   const std::vector<TextSpan>& limits);

}  // namespace terrace
