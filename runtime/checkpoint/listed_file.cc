#include "runtime/checkpoint/listed_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/hash.h"
#include "runtime/checkpoint/json_number.h"

namespace terrace {
namespace {

using nlohmann::json;

constexpr const char* kHash = "xxh3";
constexpr const char* kPieces = "pieces";
constexpr std::size_t kHashDigits = 16;
// The largest sizes that a correct manifest can have. A header is no longer than safetensors
// allows.
constexpr std::uint64_t kPieceBytesMax = 64 << 20;
constexpr std::uint64_t kHeaderBytesMax = 100'000'008;

std::uint64_t hash_file(OpenFile& file, const std::string& path, std::uint64_t size_bytes) {
  std::vector<std::byte> piece(std::min<std::uint64_t>(size_bytes, 4 * kMiB));
  StreamingHash hash;
  for (std::uint64_t at = 0; at < size_bytes; at += piece.size()) {
    const std::span<std::byte> part =
        std::span(piece).first(std::min<std::uint64_t>(piece.size(), size_bytes - at));
    read_fully(file, path, at, part);
    hash.add(part);
  }
  return hash.value();
}

PieceHashes parse_pieces(const json& listed, std::uint64_t size_bytes) {
  PieceHashes pieces;
  pieces.header_bytes = whole_number<std::uint64_t>(listed.at("header_size"));
  pieces.piece_bytes = whole_number<std::uint64_t>(listed.at("size"));
  const auto text = listed.at(kHash).get<std::string>();
  if (pieces.header_bytes > std::min(size_bytes, kHeaderBytesMax) || pieces.piece_bytes == 0 ||
      pieces.piece_bytes > kPieceBytesMax ||
      text.size() !=
          kHashDigits * PieceHashes::count(pieces.header_bytes, pieces.piece_bytes, size_bytes)) {
    throw std::invalid_argument("the pieces of a file do not cover the whole file");
  }
  for (std::size_t at = 0; at < text.size(); at += kHashDigits) {
    pieces.hashes.push_back(from_hex(text, at));
  }
  return pieces;
}

FileHashes parse_hashes(const json& listed) {
  FileHashes hashes;
  hashes.size_bytes = whole_number<std::uint64_t>(listed.at("size"));
  const auto text = listed.at(kHash).get<std::string>();
  if (text.size() != kHashDigits) throw std::invalid_argument(text + " is not a checksum");
  hashes.hash = from_hex(text);
  if (listed.contains(kPieces)) hashes.pieces = parse_pieces(listed.at(kPieces), hashes.size_bytes);
  return hashes;
}

// Returns the name of a file in the manifest's own directory, or in one beside it.
std::string parse_file_name(const json& listed) {
  const auto name = listed.at("name").get<std::string>();
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
    throw std::invalid_argument(fmt::format("'{}' is not the name of a file", name));
  }
  return name;
}

}  // namespace

std::string to_hex(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

std::uint64_t from_hex(const std::string& text, std::size_t at) {
  std::uint64_t value = 0;
  const char* const begin = text.data() + at;
  const char* const end = begin + std::min(kHashDigits, text.size() - at);
  if (static_cast<std::size_t>(end - begin) != kHashDigits ||
      std::from_chars(begin, end, value, 16).ptr != end) {
    throw std::invalid_argument(fmt::format("{} is not a checksum", text.substr(at, kHashDigits)));
  }
  return value;
}

std::string to_json(const ListedFile& listed) {
  const FileHashes& hashes = listed.hashes;
  json file = {{"name", listed.name}, {"size", hashes.size_bytes}, {kHash, to_hex(hashes.hash)}};
  const PieceHashes& pieces = hashes.pieces;
  if (pieces.hashes.empty()) return file.dump();
  std::string text;
  for (const std::uint64_t hash : pieces.hashes) text += to_hex(hash);
  file[kPieces] = {
      {"header_size", pieces.header_bytes}, {"size", pieces.piece_bytes}, {kHash, text}};
  return file.dump();
}

ListedFile parse_listed_file(const std::string& text) {
  const json listed = json::parse(text);
  return {parse_file_name(listed), parse_hashes(listed)};
}

std::unique_ptr<OpenFile> open_listed(const ListedFile& file, const ListedPlace& place) {
  const std::string path = (std::filesystem::path(place.directory) / file.name).string();
  if (!place.disk.exists(path))
    throw CorruptData(fmt::format("{} does not exist any more", path), place.remedy);
  FileSystem::Opened opened = place.disk.open(path);
  if (opened.file == nullptr) {
    throw IoError({.operation = "open", .path = path, .error_number = opened.error_number});
  }
  const std::int64_t size = opened.file->size();
  if (size < 0) {
    throw IoError({.operation = "stat", .path = path, .error_number = static_cast<int>(-size)});
  }
  const FileHashes& written = file.hashes;
  if (static_cast<std::uint64_t>(size) != written.size_bytes) {
    throw CorruptData(
        fmt::format("{} has {} bytes, but {} were written", path, size, written.size_bytes),
        place.remedy);
  }
  if (!written.pieces.hashes.empty()) {
    return std::make_unique<VerifiedFile>(std::move(opened.file), path, written, place.cache,
                                          place.remedy);
  }
  const std::uint64_t hash = hash_file(*opened.file, path, written.size_bytes);
  if (hash != written.hash) {
    throw CorruptData(
        fmt::format("{}: the {} bytes at offset 0 have checksum {:016x}, but the bytes that were "
                    "written had {:016x}",
                    path, size, hash, written.hash),
        place.remedy);
  }
  return std::move(opened.file);
}

}  // namespace terrace
