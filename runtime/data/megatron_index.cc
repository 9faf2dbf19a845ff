#include "runtime/data/megatron_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "runtime/data/readable_file.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::size_t kHeaderBytes = 34;
constexpr const char* kMakeDatasetAgain = "make the dataset again";

// Numbers that lie one after the other in a file, read in pieces.
template <typename T>
class Numbers {
 public:
  Numbers(const ReadableFile& file, std::uint64_t offset, std::uint64_t count)
      : file_(file), offset_(offset), left_(count) {}

  bool has_next() const { return left_ + std::uint64_t(end_ - at_) > 0; }
  T next() {
    if (at_ == end_) {
      end_ = std::min<std::uint64_t>(piece_.size(), left_);
      at_ = 0;
      const auto part = std::span(piece_).first(end_);
      file_.read(offset_, std::as_writable_bytes(part));
      offset_ += part.size_bytes();
      left_ -= end_;
    }
    return piece_[at_++];
  }

 private:
  const ReadableFile& file_;
  std::uint64_t offset_;
  std::uint64_t left_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
  std::array<T, 512> piece_;
};

// The header of an index. Its fields lie without gaps: 9 bytes of magic, u64 version, u8 type, u64
// sequences, u64 entries of the list of documents; then i32 lengths, i64 places in bytes, i64 first
// sequences.
struct Header {
  std::uint8_t type = 0;
  std::uint64_t sequences = 0;
  std::uint64_t documents = 0;  // their number plus one

  std::uint64_t lengths() const { return kHeaderBytes; }
  std::uint64_t places() const { return lengths() + 4 * sequences; }
  std::uint64_t firsts() const { return places() + 8 * sequences; }
  std::uint64_t end() const { return firsts() + 8 * documents; }
};

CorruptData damaged(const std::string& path, const std::string& what) {
  return {fmt::format("{}: {}", path, what), kMakeDatasetAgain};
}

Header read_header(const std::string& path, const ReadableFile& file) {
  const std::uint64_t size = size_of_file(path);
  std::array<std::byte, kHeaderBytes> bytes;
  if (size < bytes.size()) throw damaged(path, "is shorter than the header of a Megatron index");
  file.read(0, bytes);
  const auto number = [&bytes](std::size_t at) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    return value;
  };
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    throw damaged(path, "does not begin like a Megatron index");
  }
  if (number(9) != 1) {
    throw ConfigError(
        fmt::format("{}: has version {} of Megatron's index; only 1 is supported", path, number(9)),
        kMakeDatasetAgain);
  }
  Header header;
  header.type = static_cast<std::uint8_t>(bytes[17]);
  header.sequences = number(18);
  header.documents = number(26);
  if (header.sequences > size || header.documents > size || header.end() > size) {
    throw damaged(path, fmt::format("has {} bytes, but its header promises {} sequences and {} "
                                    "documents",
                                    size, header.sequences, header.documents));
  }
  if (size == header.end()) return header;
  throw ConfigError(fmt::format("{}: contains more than lengths, places and documents, like the "
                                "index of multimodal data",
                                path),
                    "give a text-only dataset");
}

std::int64_t width_of(const std::string& path, std::uint8_t type) {
  constexpr std::uint8_t kI32 = 4;
  constexpr std::uint8_t kU16 = 8;
  if (type == kU16) return 2;
  if (type == kI32) return 4;
  throw ConfigError(fmt::format("{}: its ids have Megatron's type {}; only 4 (int32) and 8 "
                                "(uint16) are supported",
                                path, type),
                    kMakeDatasetAgain);
}

std::string index_of(const std::string& ids_path) {
  return fs::path(ids_path).replace_extension(".idx").string();
}

}  // namespace

std::string megatron_ids_path(const std::string& path) {
  if (path.ends_with(".idx")) return fs::path(path).replace_extension(".bin").string();
  std::error_code ignored;
  return fs::exists(path, ignored) || path.ends_with(".bin") ? path : path + ".bin";
}

bool has_megatron_index(const std::string& ids_path) {
  const std::string path = index_of(ids_path);
  std::error_code ignored;
  if (!ids_path.ends_with(".bin") || !fs::is_regular_file(path, ignored)) return false;
  if (size_of_file(path) < kMagic.size()) return false;
  std::array<std::byte, kMagic.size()> front;
  ReadableFile(path).read(0, front);
  return std::memcmp(front.data(), kMagic.data(), kMagic.size()) == 0;
}

TokenFile open_megatron(const std::string& ids_path) {
  const std::string path = index_of(ids_path);
  const ReadableFile file(path);
  const Header header = read_header(path, file);
  TokenFile ids = {.path = ids_path, .width = width_of(path, header.type)};
  Numbers<std::int32_t> lengths(file, header.lengths(), header.sequences);
  Numbers<std::int64_t> places(file, header.places(), header.sequences);
  while (lengths.has_next()) {
    const std::int32_t length = lengths.next();
    const std::int64_t place = places.next();
    if (length < 0 || place != ids.tokens * ids.width) {
      throw damaged(path, fmt::format("a sequence of {} tokens is at byte {}, but the sequences "
                                      "before it end at {}",
                                      length, place, ids.tokens * ids.width));
    }
    ids.tokens += length;
  }
  const std::uint64_t size = size_of_file(ids_path);
  if (size != static_cast<std::uint64_t>(ids.tokens * ids.width)) {
    throw damaged(ids_path, fmt::format("has {} bytes, but {} promises {} tokens of {}", size, path,
                                        ids.tokens, ids.width));
  }
  ids.documents = {.kind = DocumentIndex::Kind::kMegatron, .path = path};
  return ids;
}

void visit_megatron_ends(const std::string& index_path, FunctionRef<void(std::int64_t end)> visit) {
  const ReadableFile file(index_path);
  const Header header = read_header(index_path, file);
  Numbers<std::int32_t> lengths(file, header.lengths(), header.sequences);
  Numbers<std::int64_t> firsts(file, header.firsts(), header.documents);
  const auto wrong = [&] { return damaged(index_path, "its list of documents is out of order"); };
  if (!firsts.has_next() || firsts.next() != 0) throw wrong();
  std::int64_t sequence = 0;
  std::int64_t tokens = 0;
  while (firsts.has_next()) {
    const std::int64_t next = firsts.next();
    if (next < sequence || next > static_cast<std::int64_t>(header.sequences)) throw wrong();
    for (; sequence < next; ++sequence) tokens += lengths.next();
    visit(tokens);
  }
  if (sequence != static_cast<std::int64_t>(header.sequences)) throw wrong();
}

}  // namespace terrace
