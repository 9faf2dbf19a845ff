#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace terrace {

// A file without a name in a directory for temporary files: its room is free again when nobody has
// it open, however the process ends. Written from front to back.
class ScratchFile {
 public:
  // In temporary_directory(). Throws IoError.
  ScratchFile();
  // One that path() of a process on this host has told. Throws IoError.
  explicit ScratchFile(const std::string& path);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  // Adds bytes at the end, by way of a buffer until flush(). Throws IoError.
  void write(std::span<const std::byte> bytes);
  void flush();

  // A path by which it can be opened as long as this object lives, by this user's processes.
  std::string path() const;

 private:
  std::string name_;  // for messages
  int file_ = -1;
  std::vector<std::byte> buffer_;
  std::uint64_t written_ = 0;
};

}  // namespace terrace
