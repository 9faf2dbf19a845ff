#include "base/lfs_pointer.h"

#include <fmt/format.h>

namespace terrace {

ConfigError lfs_pointer_error(const std::string& path) {
  return {fmt::format("{}: {}", path, kLfsPointerKind), kLfsPointerRemedy};
}

void refuse_lfs_pointer(std::string_view content, const std::string& path) {
  if (content.starts_with(kLfsPointerBegin)) throw lfs_pointer_error(path);
}

}  // namespace terrace
