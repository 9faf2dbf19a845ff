#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace terrace {

// The printable code points that stand for bytes in byte-level vocabularies, as GPT-2 chose them:
// the bytes of Latin-1 that can be seen stand for themselves, the others follow from U+0100 on.
class ByteAlphabet {
 public:
  ByteAlphabet();

  // Returns the bytes that a token stands for; nothing where one of its code points stands for no
  // byte. The token is valid UTF-8.
  std::optional<std::string> bytes_of(std::string_view token) const;

 private:
  std::unordered_map<char32_t, char> bytes_;
};

}  // namespace terrace
