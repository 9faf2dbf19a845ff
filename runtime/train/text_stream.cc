#include "runtime/train/text_stream.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

namespace terrace {
namespace {

// Returns the size in bytes of the longest proper prefix of a stop text that the text ends with.
std::size_t begun_stop(std::string_view text, std::string_view stop) {
  for (std::size_t size = std::min(text.size(), stop.size() - 1); size > 0; --size) {
    if (text.ends_with(stop.substr(0, size))) return size;
  }
  return 0;
}

// Returns the number of bytes at the end of the text that are the beginning of an incomplete code
// point.
std::size_t begun_code_point(std::string_view text) {
  const std::size_t most = std::min<std::size_t>(text.size(), 3);
  for (std::size_t size = 1; size <= most; ++size) {
    const auto byte = static_cast<unsigned char>(text[text.size() - size]);
    if ((byte & 0xC0) == 0x80) continue;  // inside a code point
    const std::size_t whole = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return size < whole ? size : 0;
  }
  return 0;
}

}  // namespace

std::string TextStream::add(std::string_view bytes) {
  if (is_stopped_) return {};
  held_ += bytes;
  std::size_t begin = std::string::npos;
  std::size_t end = std::string::npos;
  for (const std::string& stop : stop_texts_) {
    const std::size_t found = held_.find(stop);
    if (found == std::string::npos) continue;
    const auto place = std::pair(found + stop.size(), found);
    if (place < std::pair(end, begin)) std::tie(end, begin) = place;
  }
  is_stopped_ = begin != std::string::npos;
  std::size_t held = 0;
  if (!is_stopped_) {
    for (const std::string& stop : stop_texts_) held = std::max(held, begun_stop(held_, stop));
    held += begun_code_point(std::string_view(held_).substr(0, held_.size() - held));
    begin = held_.size() - held;
  }
  std::string shown = held_.substr(0, begin);
  held_.erase(0, begin);
  return shown;
}

std::string TextStream::finish() {
  if (is_stopped_) return {};
  return std::exchange(held_, {});
}

}  // namespace terrace
