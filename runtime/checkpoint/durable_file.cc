#include "runtime/checkpoint/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace terrace {
namespace {

constexpr const char* kFullDisk = "free space on that file system, or choose another directory";

std::string directory_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

}  // namespace

DurableFile::DurableFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ < 0) {
    throw IoError({.operation = "open", .path = temporary_, .error_number = errno});
  }
}

DurableFile::~DurableFile() { discard(); }

void DurableFile::append(std::span<const std::byte> bytes) {
  TERRACE_CHECK_LE(0, file_);  // not committed, and no earlier write failed
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("write", bytes.size(), written < 0 ? errno : 0);
    size_ += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void DurableFile::commit() {
  TERRACE_CHECK_LE(0, file_);
  if (::fsync(file_) != 0) fail("fsync", 0, errno);
  const int closed = ::close(std::exchange(file_, -1));
  const int close_error = errno;
  if (closed != 0) {
    std::remove(temporary_.c_str());
    throw IoError({.operation = "close", .path = temporary_, .error_number = close_error});
  }
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int rename_error = errno;
    std::remove(temporary_.c_str());
    throw IoError({.operation = "rename", .path = path_, .error_number = rename_error});
  }
  sync_directory(directory_of(path_));
}

void DurableFile::discard() noexcept {
  if (file_ < 0) return;
  ::close(std::exchange(file_, -1));
  std::remove(temporary_.c_str());
}

void DurableFile::fail(const char* operation, std::uint64_t size_bytes, int error_number) {
  discard();
  const bool full = error_number == ENOSPC || error_number == EDQUOT;
  throw IoError({.operation = operation,
                 .path = path_,
                 .offset = size_,
                 .size = size_bytes,
                 .error_number = error_number},
                full ? kFullDisk : "");
}

void write_durable_file(const std::string& path, std::string_view content) {
  DurableFile file(path);
  file.append(std::as_bytes(std::span(content.data(), content.size())));
  file.commit();
}

namespace {

// `allowed_error` is an errno of fsync that means that there is nothing to do.
void sync_path(const std::string& path, int open_flags, int allowed_error) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | open_flags);
  if (file < 0) throw IoError({.operation = "open", .path = path, .error_number = errno});
  const int result = ::fsync(file);
  const int error_number = errno;
  ::close(file);
  if (result != 0 && error_number != allowed_error) {
    throw IoError({.operation = "fsync", .path = path, .error_number = error_number});
  }
}

}  // namespace

void sync_file(const std::string& path) { sync_path(path, 0, 0); }

// Some file systems have nothing to sync in a directory and say EINVAL.
void sync_directory(const std::string& directory) { sync_path(directory, O_DIRECTORY, EINVAL); }

}  // namespace terrace
