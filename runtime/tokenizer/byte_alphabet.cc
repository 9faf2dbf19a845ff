#include "runtime/tokenizer/byte_alphabet.h"

#include "runtime/tokenizer/utf8.h"

namespace terrace {

ByteAlphabet::ByteAlphabet() {
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool is_seen = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                         (byte >= 0xAE && byte <= 0xFF);
    bytes_[is_seen ? byte : next++] = static_cast<char>(byte);
  }
}

std::optional<std::string> ByteAlphabet::bytes_of(std::string_view token) const {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const CodePoint point = code_point_at(token, at);
    const auto found = bytes_.find(point.value);
    if (found == bytes_.end()) return std::nullopt;
    bytes += found->second;
    at += point.size_bytes;
  }
  return bytes;
}

}  // namespace terrace
