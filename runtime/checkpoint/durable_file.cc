#include "runtime/checkpoint/durable_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace terrace {
namespace {

bool is_full(int error_number) { return error_number == ENOSPC || error_number == EDQUOT; }

std::string directory_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

std::optional<HostMemory> block_if_there_is_memory() {
  try {
    return HostMemory(DurableFile::kBlockBytes, {.huge_pages = false, .touch = false});
  } catch (const OutOfMemory&) {
    return std::nullopt;
  }
}

}  // namespace

DurableFile::DurableFile(std::string path, FileSystem& disk)
    : path_(std::move(path)),
      temporary_(path_ + ".tmp"),
      disk_(disk),
      block_(block_if_there_is_memory()) {
  FileSystem::Opened opened = disk_.create(temporary_);
  if (opened.file == nullptr) {
    throw IoError({.operation = "open", .path = temporary_, .error_number = opened.error_number});
  }
  file_ = std::move(opened.file);
}

DurableFile::~DurableFile() { discard(); }

void DurableFile::append(std::span<const std::byte> bytes) {
  TERRACE_CHECK(file_ != nullptr);  // not committed, and no earlier write failed
  if (!block_) return write(bytes);
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kBlockBytes - collected_);
    std::memcpy(block_->bytes().data() + collected_, bytes.data(), count);
    collected_ += count;
    bytes = bytes.subspan(count);
    if (collected_ == kBlockBytes) write_block();
  }
}

void DurableFile::write_block() {
  if (collected_ > 0) write(block_->bytes().first(std::exchange(collected_, 0)));
}

void DurableFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::int64_t written = file_->append(bytes);
    if (written == -EINTR) continue;
    if (written <= 0) fail("write", bytes.size(), static_cast<int>(-written));
    written_ += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void DurableFile::commit() {
  TERRACE_CHECK(file_ != nullptr);
  write_block();
  if (const int error = file_->sync(); error != 0) fail("fsync", 0, error);
  if (const int error = file_->close(); error != 0) fail("close", 0, error);
  if (const int error = disk_.rename(temporary_, path_); error != 0) fail("rename", 0, error);
  file_.reset();
  sync_directory(directory_of(path_), disk_);
}

void DurableFile::discard() noexcept {
  if (file_ == nullptr) return;
  file_.reset();
  disk_.remove(temporary_);
}

void DurableFile::fail(const char* operation, std::uint64_t size_bytes, int error_number) {
  discard();
  throw IoError({.operation = operation,
                 .path = path_,
                 .offset = written_,
                 .size = size_bytes,
                 .error_number = error_number},
                is_full(error_number) ? kFullDiskRemedy : "");
}

bool is_full_disk(const IoError& error) { return is_full(error.where().error_number); }

void write_durable_file(const std::string& path, std::string_view content, FileSystem& disk) {
  DurableFile file(path, disk);
  file.append(std::as_bytes(std::span(content.data(), content.size())));
  file.commit();
}

void sync_file(const std::string& path, FileSystem& disk) {
  const FileSystem::Opened opened = disk.open(path);
  const int error = opened.file == nullptr ? opened.error_number : opened.file->sync();
  if (error == 0) return;
  throw IoError({.operation = opened.file == nullptr ? "open" : "fsync",
                 .path = path,
                 .error_number = error});
}

void sync_directory(const std::string& directory, FileSystem& disk) {
  const int error = disk.sync_directory(directory);
  if (error != 0) {
    throw IoError({.operation = "fsync", .path = directory, .error_number = error});
  }
}

}  // namespace terrace
