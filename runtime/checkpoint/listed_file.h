#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/checkpoint/file_hashes.h"
#include "runtime/checkpoint/file_system.h"
#include "runtime/checkpoint/verified_file.h"

// A file as a manifest lists it: its name and checksums.
namespace terrace {

struct ListedFile {
  std::string name;   // in a directory that is known
  FileHashes hashes;  // without pieces where the manifest lists none
};

// Returns the entry as JSON.
std::string to_json(const ListedFile& file);
// Parses that JSON. Throws std::exception for text that to_json() does not make.
ListedFile parse_listed_file(const std::string& json);

// Returns a hash as 16 hexadecimal digits.
std::string to_hex(std::uint64_t hash);
// Returns the number that the 16 digits at `at` stand for. Throws std::invalid_argument where there
// are none.
std::uint64_t from_hex(const std::string& text, std::size_t at = 0);

// The place of a listed file, and the advice for a file that is not as it was written.
struct ListedPlace {
  const std::string& directory;
  FileSystem& disk;
  PieceCache& cache;
  const char* remedy = "";
};

// Opens a file and checks that its size is as it was written. Reads verify the pieces that they
// read; a file that is listed without pieces is verified as a whole here. Throws CorruptData, which
// names the file, IoError.
std::unique_ptr<OpenFile> open_listed(const ListedFile& file, const ListedPlace& place);

}  // namespace terrace
