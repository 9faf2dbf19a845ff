#include "base/error.h"

#include <fmt/format.h>

#include <cstring>

namespace terrace {
namespace {

std::string join(const std::string& what_happened, const std::string& remedy) {
  if (remedy.empty()) return what_happened;
  const bool has_line_end = what_happened.ends_with('\n');
  return what_happened + (has_line_end ? "" : "; ") + remedy;
}

std::string describe(const IoError::Where& where) {
  std::string text = fmt::format("{} of {} failed", where.operation, where.path);
  if (where.size != 0) {
    text += fmt::format(" at offset {}, {} bytes", where.offset, where.size);
  }
  if (where.error_number != 0) {
    text += fmt::format(": {} (errno {})", std::strerror(where.error_number), where.error_number);
  } else {
    text += ": fewer bytes were transferred than requested";
  }
  return text;
}

}  // namespace

Error::Error(const std::string& what_happened, const std::string& remedy)
    : std::runtime_error(join(what_happened, remedy)), remedy_(remedy) {}

IoError::IoError(Where where, const std::string& remedy)
    : Error(describe(where), remedy), where_(std::move(where)) {}

}  // namespace terrace
