#include "runtime/data/readable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace terrace {

ReadableFile::ReadableFile(const std::string& path) : path_(path) {
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) throw IoError({.operation = "open", .path = path, .error_number = errno});
}

ReadableFile::~ReadableFile() { ::close(file_); }

void ReadableFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(file_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw IoError({.operation = "read",
                     .path = path_,
                     .offset = offset,
                     .size = out.size(),
                     .error_number = got < 0 ? errno : 0},
                    got < 0 ? "" : "the file has become shorter since the start; restore it");
    }
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

std::size_t ReadableFile::read_next(std::span<std::byte> out) const {
  for (;;) {
    const ssize_t got = ::read(file_, out.data(), out.size());
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno == EINTR) continue;
    throw IoError({.operation = "read", .path = path_, .error_number = errno});
  }
}

std::uint64_t size_of_file(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw IoError({.operation = "stat", .path = path, .error_number = error.value()});
  return size;
}

}  // namespace terrace
