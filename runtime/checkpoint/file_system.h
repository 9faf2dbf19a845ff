#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// The seam to the file system, as far as checkpoints use it. Real: the system's. Fake: one in
// memory that loses what was not synced when its power is cut (tests/sim). Both pass
// tests/conformance. One thread at a time changes a file system; reads are thread-safe.
namespace terrace {

// Destroying it closes it.
class OpenFile {
 public:
  virtual ~OpenFile() = default;
  // Bytes carried, maybe fewer than asked for, 0 at the end of what is read; or a negative errno.
  // The system's passes the page cache by (O_DIRECT) where 1 MiB or more is appended that lies on
  // pages in memory and in the file, and the file system allows it.
  virtual std::int64_t append(std::span<const std::byte> bytes) = 0;
  virtual std::int64_t read_at(std::span<std::byte> out, std::uint64_t offset) = 0;
  // Bytes, or a negative errno.
  virtual std::int64_t size() = 0;
  // Makes the content survive a power cut, but not the file's name. 0 or an errno.
  virtual int sync() = 0;
  // What a failing close has to say; the file is closed in any case. 0 or an errno.
  virtual int close() = 0;
};

// Functions that return int return 0 or an errno.
class FileSystem {
 public:
  struct Opened {
    std::unique_ptr<OpenFile> file;  // null: error_number says why
    int error_number = 0;
  };

  virtual ~FileSystem() = default;
  // An empty file to append to; one that is there is emptied.
  virtual Opened create(const std::string& path) = 0;
  // A regular file to read.
  virtual Opened open(const std::string& path) = 0;
  virtual int make_directory(const std::string& path) = 0;
  // Takes the place of a file that is there; a directory only that of an empty one.
  virtual int rename(const std::string& from, const std::string& to) = 0;
  // A file, or a directory with all that is in it; that nothing is there is no error.
  virtual int remove(const std::string& path) = 0;
  // Makes what was made, renamed and removed in the directory survive a power cut.
  virtual int sync_directory(const std::string& path) = 0;
  // Whether something is there. Throws IoError where that cannot be told: what is there and cannot
  // be looked at must not be taken for what is not.
  virtual bool exists(const std::string& path) = 0;
  // Names in a directory, in any order; none where it is not there. Throws IoError where it is and
  // cannot be listed.
  virtual std::vector<std::string> list(const std::string& directory) = 0;
  // Bytes that can still be written to the file system of a directory; none where it does not say.
  virtual std::optional<std::uint64_t> free_bytes(const std::string& directory) = 0;
};

// The system's; it has no state of its own.
FileSystem& system_files();

// Makes a directory of the system, and those above it, where they are not there. Throws IoError
// that names it.
void make_directories(const std::string& path);
// Removes a file of the system, where it is there. Throws IoError that names it.
void remove_file(const std::string& path);

// All of a file. Throws IoError.
std::string read_whole_file(FileSystem& disk, const std::string& path);
// All of `out`, starting at `offset`, however it comes. Throws IoError, also where the file ends.
void read_fully(OpenFile& file, const std::string& path, std::uint64_t offset,
                std::span<std::byte> out);

}  // namespace terrace
