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

// As JSON.
std::string to_json(const ListedFile& file);
// Throws std::exception for what to_json() does not make.
ListedFile parse_listed_file(const std::string& json);

// 16 hexadecimal digits.
std::string to_hex(std::uint64_t hash);
// The number of the 16 digits that begin at `at`. Throws std::invalid_argument where there are
// none.
std::uint64_t from_hex(const std::string& text, std::size_t at = 0);

// Where a listed file is, and what to do where it is not as it was written.
struct ListedPlace {
  const std::string& directory;
  FileSystem& disk;
  PieceCache& cache;
  const char* remedy = "";
};

// Opens a file whose size is what was written. What is read from it is verified, or all of it was.
// Throws CorruptData naming the file, IoError.
std::unique_ptr<OpenFile> open_listed(const ListedFile& file, const ListedPlace& place);

}  // namespace terrace
