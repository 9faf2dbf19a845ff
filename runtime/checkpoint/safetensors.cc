#include "runtime/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/lfs_pointer.h"

namespace terrace {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr const char* kFetchAgain = "fetch or write the file again";

}  // namespace

SafetensorsFile::SafetensorsFile(std::string path, FileSystem& disk) : path_(std::move(path)) {
  FileSystem::Opened opened = disk.open(path_);
  if (opened.file == nullptr) {
    throw IoError({.operation = "open", .path = path_, .error_number = opened.error_number});
  }
  file_ = std::move(opened.file);
  load_header();
}

SafetensorsFile::SafetensorsFile(std::string path, std::unique_ptr<OpenFile> file)
    : path_(std::move(path)), file_(std::move(file)) {
  load_header();
}

void SafetensorsFile::load_header() {
  const std::int64_t found = file_->size();
  if (found < 0) {
    throw IoError({.operation = "stat", .path = path_, .error_number = static_cast<int>(-found)});
  }
  const auto size = static_cast<std::uint64_t>(found);
  if (size < 8) throw CorruptData(fmt::format("{}: has only {} bytes", path_, size), kFetchAgain);
  std::uint64_t length = 0;
  read_fully(*file_, path_, 0, std::as_writable_bytes(std::span(&length, 1)));
  // As a length, the first letters of a pointer would be far too large.
  if (std::memcmp(&length, kLfsPointerBegin.data(), sizeof(length)) == 0) {
    throw lfs_pointer_error(path_);
  }
  if (length > kSafetensorsHeaderLimit || length > size - 8) {
    throw CorruptData(
        fmt::format("{}: has a header of {} bytes, but only {} bytes in all: it is cut short, or "
                    "not a safetensors file",
                    path_, length, size),
        kFetchAgain);
  }
  std::string json(length, '\0');
  read_fully(*file_, path_, 8, std::as_writable_bytes(std::span(json)));
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
  read_fully(*file_, path_, data_offset_ + tensor.begin + first_byte, out);
}

SafetensorsWriter::SafetensorsWriter(std::string path, SafetensorsHeader header,
                                     std::uint64_t alignment, FileSystem& disk, FileHasher* hasher)
    : header_(std::move(header)), file_(std::move(path), disk), hasher_(hasher) {
  const std::string front = make_safetensors_header(header_, alignment);
  file_.append(std::as_bytes(std::span(front)));
  if (hasher_ != nullptr) {
    hasher_->add(std::as_bytes(std::span(front)));
    hasher_->end_header();
  }
  end_ = front.size() + (header_.tensors.empty() ? 0 : header_.tensors.back().end);
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  TERRACE_CHECK_LE(bytes.size(), end_ - file_.size());
  file_.append(bytes);
  if (hasher_ != nullptr) hasher_->add(bytes);
}

void SafetensorsWriter::finish() {
  TERRACE_CHECK_EQ(file_.size(), end_);
  file_.commit();
}

}  // namespace terrace
