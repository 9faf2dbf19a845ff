#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// Files that tell by their first bytes that they are not bare token ids.
namespace terrace {

struct FileSignature {
  std::string what;    // "a NumPy file (.npy)"
  std::string remedy;  // how its tokens become a file of bare ids
};

// Returns what is known of a file of `size_bytes` bytes that begins with `front`, of which up to
// 512 bytes are given, and ends with the byte `last`. `path` is for the remedy. None for a file
// that may be bare ids.
std::optional<FileSignature> find_signature(const std::string& path, std::string_view front,
                                            char last, std::uint64_t size_bytes);

// Returns a Python command that converts the result of `array`, an expression of numpy (np), to a
// file of bare ids beside `path`, with the flag that reads it.
std::string conversion(const std::string& array, const std::string& path);

}  // namespace terrace
