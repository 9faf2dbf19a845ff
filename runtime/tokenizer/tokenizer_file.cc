#include "runtime/tokenizer/tokenizer_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/bytes.h"
#include "base/error.h"
#include "base/lfs_pointer.h"

namespace terrace {
namespace {

// The largest tokenizers that are known take a quarter of it.
constexpr std::uintmax_t kTokenizerBytesMax = 128 * kMiB;

}  // namespace

std::string read_tokenizer_file(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw IoError({.operation = "stat", .path = path, .error_number = error.value()});
  if (size > kTokenizerBytesMax) {
    throw CorruptData(fmt::format("{}: {}, but no tokenizer is larger than {}", path,
                                  format_size(size), format_size(kTokenizerBytesMax)),
                      "name a tokenizer.json or a SentencePiece .model");
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw IoError({.operation = "open", .path = path, .error_number = errno});
  std::string content(size, '\0');
  stream.read(content.data(), static_cast<std::streamsize>(size));
  if (stream.gcount() != static_cast<std::streamsize>(size)) {
    throw IoError({.operation = "read", .path = path, .error_number = errno});
  }
  refuse_lfs_pointer(content, path);
  return content;
}

}  // namespace terrace
