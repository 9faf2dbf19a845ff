#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// A text that is shown as it is made, up to the first stop text in it. What is shown ends at a
// whole code point, and before anything that may yet become a stop text; nothing else is held back.
class TextStream {
 public:
  // None of them empty.
  explicit TextStream(std::vector<std::string> stop_texts) : stop_texts_(std::move(stop_texts)) {}

  // Returns what can be shown now. After a stop text there is nothing more.
  std::string add(std::string_view bytes);
  // At the end of the text, returns what was held back.
  std::string finish();

  // Whether the text has ended before a stop text. Of several, the one that was complete first.
  bool is_stopped() const { return is_stopped_; }

 private:
  std::vector<std::string> stop_texts_;
  std::string held_;
  bool is_stopped_ = false;
};

}  // namespace terrace
