#include "runtime/checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace terrace {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr const char* kFetchAgain = "fetch or write the file again";

void read_all(int file, const std::string& path, std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::pread(file, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw IoError({.operation = "read",
                     .path = path,
                     .offset = offset,
                     .size = out.size(),
                     .error_number = got < 0 ? errno : 0});
    }
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) throw IoError({.operation = "open", .path = path_, .error_number = errno});
  try {
    load_header();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() { ::close(file_); }

void SafetensorsFile::load_header() {
  struct stat status = {};
  if (::fstat(file_, &status) != 0) {
    throw IoError({.operation = "stat", .path = path_, .error_number = errno});
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size < 8) throw CorruptData(fmt::format("{}: only {} bytes", path_, size), kFetchAgain);
  std::uint64_t length = 0;
  read_all(file_, path_, 0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > kSafetensorsHeaderLimit || length > size - 8) {
    throw CorruptData(
        fmt::format("{}: a header of {} bytes in a file of {}: cut short, or not safetensors",
                    path_, length, size),
        kFetchAgain);
  }
  std::string json(length, '\0');
  read_all(file_, path_, 8, std::as_writable_bytes(std::span(json)));
  data_offset_ = 8 + length;
  header_ = parse_safetensors_header(json, size - data_offset_, path_);
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) by_name_[header_.tensors[i].name] = i;
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

void SafetensorsFile::read(const SafetensorsTensor& tensor, std::uint64_t first_byte,
                           std::span<std::byte> out) const {
  TERRACE_CHECK_LE(first_byte, tensor.size_bytes());
  TERRACE_CHECK_LE(out.size(), tensor.size_bytes() - first_byte);
  read_all(file_, path_, data_offset_ + tensor.begin + first_byte, out);
}

SafetensorsWriter::SafetensorsWriter(std::string path, SafetensorsHeader header,
                                     std::uint64_t alignment)
    : header_(std::move(header)), file_(std::move(path)) {
  const std::string front = make_safetensors_header(header_, alignment);
  file_.append(std::as_bytes(std::span(front)));
  end_ = front.size() + (header_.tensors.empty() ? 0 : header_.tensors.back().end);
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  TERRACE_CHECK_LE(bytes.size(), end_ - file_.size());
  file_.append(bytes);
}

void SafetensorsWriter::finish() {
  TERRACE_CHECK_EQ(file_.size(), end_);
  file_.commit();
}

}  // namespace terrace
