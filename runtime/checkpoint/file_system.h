#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// The seam to the file system, as far as checkpoints use it. The real one is the system's. The fake
// is one in memory that loses unsynced data when its power is cut (tests/sim). Both pass
// tests/conformance. One thread at a time changes a file system; reads are thread-safe.
namespace terrace {

// An open file. Its destructor closes it.
class OpenFile {
 public:
  virtual ~OpenFile() = default;
  // append() and read_at() return the number of bytes carried, which may be fewer than asked for
  // and is 0 at the end of a file that is read; or a negative errno. The system's append() bypasses
  // the page cache (O_DIRECT) for 1 MiB or more that is aligned to pages in memory and in the file,
  // where the file system allows it.
  virtual std::int64_t append(std::span<const std::byte> bytes) = 0;
  virtual std::int64_t read_at(std::span<std::byte> out, std::uint64_t offset) = 0;
  // Returns the size in bytes, or a negative errno.
  virtual std::int64_t size() = 0;
  // Makes the content survive a power cut, but not the file's name. Returns 0 or an errno.
  virtual int sync() = 0;
  // Closes the file, also where it reports an error. Returns 0 or an errno.
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
  // Opens an empty file to append to; a file that is there is emptied.
  virtual Opened create(const std::string& path) = 0;
  // Opens a regular file to read.
  virtual Opened open(const std::string& path) = 0;
  virtual int make_directory(const std::string& path) = 0;
  // Renames a file or a directory. A file replaces a file of the new name; a directory replaces
  // only an empty one.
  virtual int rename(const std::string& from, const std::string& to) = 0;
  // Removes a file, or a directory with all that is in it. It is no error if nothing is there.
  virtual int remove(const std::string& path) = 0;
  // Makes creations, renames and removals in the directory survive a power cut.
  virtual int sync_directory(const std::string& path) = 0;
  // Returns whether something is there. Throws IoError where that cannot be told, because a path
  // that is there but cannot be looked at must not count as missing.
  virtual bool exists(const std::string& path) = 0;
  // Returns the names in a directory, in any order; none where it is not there. Throws IoError
  // where it is there and cannot be listed.
  virtual std::vector<std::string> list(const std::string& directory) = 0;
  // Returns the bytes that can still be written to the file system of a directory; none where it
  // does not say.
  virtual std::optional<std::uint64_t> free_bytes(const std::string& directory) = 0;
};

// Returns the system's file system; it has no state of its own.
FileSystem& system_files();

// Makes a directory of the system, and those above it, where they are not there. Throws IoError
// that names it.
void make_directories(const std::string& path);
// Removes a file of the system, where it is there. Throws IoError that names it.
void remove_file(const std::string& path);

// Reads all of a file. Throws IoError.
std::string read_whole_file(FileSystem& disk, const std::string& path);
// Fills all of `out` from `offset` on, however many reads that takes. Throws IoError, also where
// the file ends.
void read_fully(OpenFile& file, const std::string& path, std::uint64_t offset,
                std::span<std::byte> out);

}  // namespace terrace
