#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "memory/host/host_memory.h"
#include "runtime/checkpoint/file_system.h"

namespace terrace {

// A file that appears under its name complete and synced, or not at all: written as "<path>.tmp",
// then fsync, rename, fsync of the directory. Appended bytes are collected into blocks of
// kBlockBytes, so a failure may be reported later than by the append that caused it, but in
// commit() at the latest. Failures throw IoError (a full disk too), and the temporary file is gone
// then. One thread at a time.
class DurableFile {
 public:
  explicit DurableFile(std::string path, FileSystem& disk = system_files());
  ~DurableFile();  // removes the temporary file unless committed
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  // Blocks begin on pages in memory and in the file, so that they can go past the page cache.
  static constexpr std::size_t kBlockBytes = std::size_t{4} << 20;

  void append(std::span<const std::byte> bytes);
  std::uint64_t size() const { return written_ + collected_; }

  // Completes the file: it is there under its name and survives a power cut.
  void commit();

 private:
  void write_block();
  void write(std::span<const std::byte> bytes);
  void discard() noexcept;
  [[noreturn]] void fail(const char* operation, std::uint64_t size_bytes, int error_number);

  const std::string path_;
  const std::string temporary_;
  FileSystem& disk_;
  std::unique_ptr<OpenFile> file_;  // null once committed or failed
  // The block takes only as much memory as was ever filled. None where the system has no memory for
  // it: appended bytes are then written as they come.
  std::optional<HostMemory> block_;
  std::size_t collected_ = 0;  // bytes of block_ that were appended and are not written
  std::uint64_t written_ = 0;
};

// Returns whether an error says that a file system, or a user's part of it, is full.
bool is_full_disk(const IoError& error);
// The advice that is given for it.
inline constexpr const char* kFullDiskRemedy =
    "free space on that file system, or choose another directory";

void write_durable_file(const std::string& path, std::string_view content,
                        FileSystem& disk = system_files());

// Makes the content of a file survive a power cut. Throws IoError.
void sync_file(const std::string& path, FileSystem& disk = system_files());

// Makes renames and new names in a directory survive a power cut. Throws IoError.
void sync_directory(const std::string& directory, FileSystem& disk = system_files());

}  // namespace terrace
