#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// A text that is shown as it is made, up to the first stop text in it. The text shown so far ends
// at a whole code point, and before anything that may still become a stop text; nothing else is
// held back.
class TextStream {
 public:
  // None of the stop texts is empty.
  explicit TextStream(std::vector<std::string> stop_texts) : stop_texts_(std::move(stop_texts)) {}

  // Adds bytes to the text and returns the part that can be shown now. Returns nothing after a stop
  // text.
  std::string add(std::string_view bytes);
  // Returns the text that was held back, at the end of the text.
  std::string finish();

  // Returns whether a stop text has ended the text. If there are several, the one that was complete
  // first counts.
  bool is_stopped() const { return is_stopped_; }

 private:
  std::vector<std::string> stop_texts_;
  std::string held_;
  bool is_stopped_ = false;
};

}  // namespace terrace
