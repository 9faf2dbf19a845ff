#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace terrace {

// A file that is open for reading while the object lives.
class ReadableFile {
 public:
  // Throws IoError. Keeps a reference to the path.
  explicit ReadableFile(const std::string& path);
  ~ReadableFile();
  ReadableFile(const ReadableFile&) = delete;
  ReadableFile& operator=(const ReadableFile&) = delete;

  // Fills `out` from the byte at `offset` on. Throws IoError, also where the file ends too early.
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  // Reads the next bytes, as many as there are, into `out` and returns how many; 0 at the end.
  std::size_t read_next(std::span<std::byte> out) const;

 private:
  const std::string& path_;
  int file_;
};

// Returns the size in bytes. Throws IoError.
std::uint64_t size_of_file(const std::string& path);

}  // namespace terrace
