#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace terrace {

// A file without a name in a directory for temporary files. Its room is free again when no process
// has it open, however the process ends. Written from front to back.
class ScratchFile {
 public:
  // Makes a file in temporary_directory(). Throws IoError.
  ScratchFile();
  // Opens a file by the path() that a process on this host has returned. Throws IoError.
  explicit ScratchFile(const std::string& path);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  // Adds bytes at the end. They may stay in a buffer until flush(). Throws IoError.
  void write(std::span<const std::byte> bytes);
  void flush();

  // Returns a path by which this user's processes can open it as long as this object lives.
  std::string path() const;

 private:
  std::string name_;  // for messages
  int file_ = -1;
  std::vector<std::byte> buffer_;
  std::uint64_t written_ = 0;
};

}  // namespace terrace
