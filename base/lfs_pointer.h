#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

// Pointers of Git LFS: small texts that `git clone` leaves in place of large files where git-lfs is
// not installed.
namespace terrace {

inline constexpr std::string_view kLfsPointerBegin = "version https://git-lfs";
inline constexpr const char* kLfsPointerKind = "a Git LFS pointer instead of the file";
inline constexpr const char* kLfsPointerRemedy = "fetch the file itself: git lfs pull";

ConfigError lfs_pointer_error(const std::string& path);
// Throws lfs_pointer_error() if `content`, a file or its beginning, is a pointer.
void refuse_lfs_pointer(std::string_view content, const std::string& path);

}  // namespace terrace
