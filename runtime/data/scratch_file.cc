#include "runtime/data/scratch_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "base/temporary_directory.h"

namespace terrace {
namespace {

constexpr std::size_t kScratchBufferBytes = std::size_t{1} << 18;
constexpr const char* kNoRoomRemedy =
    "set the environment variable TMPDIR to a directory with room for the tokenized data";

}  // namespace

ScratchFile::ScratchFile() : name_(temporary_directory() + "/terrace-data-XXXXXX") {
  file_ = ::mkostemp(name_.data(), O_CLOEXEC);
  if (file_ < 0) {
    throw IoError({.operation = "make", .path = name_, .error_number = errno}, kNoRoomRemedy);
  }
  ::unlink(name_.c_str());
}

ScratchFile::ScratchFile(const std::string& path) : name_(path) {
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) throw IoError({.operation = "open", .path = path, .error_number = errno});
}

ScratchFile::~ScratchFile() { ::close(file_); }

void ScratchFile::write(std::span<const std::byte> bytes) {
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (buffer_.size() >= kScratchBufferBytes) flush();
}

void ScratchFile::flush() {
  std::span<const std::byte> rest = buffer_;
  while (!rest.empty()) {
    const ssize_t done = ::write(file_, rest.data(), rest.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      throw IoError({.operation = "write",
                     .path = name_,
                     .offset = written_,
                     .size = rest.size(),
                     .error_number = done < 0 ? errno : 0},
                    kNoRoomRemedy);
    }
    written_ += static_cast<std::uint64_t>(done);
    rest = rest.subspan(static_cast<std::size_t>(done));
  }
  buffer_.clear();
}

std::string ScratchFile::path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), file_); }

}  // namespace terrace
