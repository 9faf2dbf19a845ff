#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/checkpoint/durable_file.h"
#include "runtime/checkpoint/file_hashes.h"
#include "runtime/checkpoint/safetensors_header.h"

namespace terrace {

// A safetensors file open for ranged reads; the header is read and checked at once. Reads are
// thread-safe.
class SafetensorsFile {
 public:
  // Throws IoError, CorruptData when the file breaks the format's rules, or ConfigError for a Git
  // LFS pointer.
  explicit SafetensorsFile(std::string path, FileSystem& disk = system_files());
  // `path` is for messages.
  SafetensorsFile(std::string path, std::unique_ptr<OpenFile> file);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }
  // Returns the tensor of that name; null when there is none. It lives as long as this.
  const SafetensorsTensor* find(std::string_view name) const;

  // Reads bytes [first_byte, first_byte + out.size()) of the tensor. Throws IoError.
  void read(const SafetensorsTensor& tensor, std::uint64_t first_byte,
            std::span<std::byte> out) const;

 private:
  void load_header();

  std::string path_;
  std::unique_ptr<OpenFile> file_;
  std::uint64_t data_offset_ = 0;
  SafetensorsHeader header_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

// Writes a safetensors file from front to back: all tensors are declared first, then their bytes
// are appended in the same order, in pieces of any size. The file appears with finish(), or not at
// all.
class SafetensorsWriter {
 public:
  // The data begins at a multiple of this many bytes, so that direct reads need not shift what they
  // load.
  static constexpr std::uint64_t kDataAlignment = 4096;

  // Uses name, type and shape of each tensor. The path is the file's own, in an existing directory.
  // `hasher`, where there is one, gets all bytes of the file; it outlives this.
  SafetensorsWriter(std::string path, SafetensorsHeader header,
                    std::uint64_t alignment = kDataAlignment, FileSystem& disk = system_files(),
                    FileHasher* hasher = nullptr);

  void append(std::span<const std::byte> bytes);
  // Completes the file. All bytes must have been appended.
  void finish();

  const SafetensorsHeader& header() const { return header_; }

 private:
  SafetensorsHeader header_;
  DurableFile file_;
  FileHasher* const hasher_;
  std::uint64_t end_ = 0;  // the size of the complete file
};

}  // namespace terrace
