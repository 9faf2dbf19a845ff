#include "runtime/data/token_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace terrace {
namespace {

static_assert(std::endian::native == std::endian::little, "ids in files are little-endian");

// Three of it are on the stack, which may be small.
constexpr std::size_t kBufferBytes = 4096;
constexpr std::size_t kBufferIds = kBufferBytes / 4;  // of the widest

class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : path_(path) {
    file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0) throw IoError({.operation = "open", .path = path, .error_number = errno});
  }
  ~OpenFile() { ::close(file_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  void read(std::uint64_t offset, std::span<std::byte> out) const {
    while (!out.empty()) {
      const ssize_t got = ::pread(file_, out.data(), out.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        throw IoError({.operation = "read",
                       .path = path_,
                       .offset = offset,
                       .size = out.size(),
                       .error_number = got < 0 ? errno : 0},
                      got < 0 ? "" : "the file became shorter since the start; restore it");
      }
      out = out.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
  }

 private:
  const std::string& path_;
  int file_;
};

template <typename T>
void widen(std::span<const std::byte> bytes, std::span<std::int64_t> ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    ids[i] = static_cast<std::int64_t>(value);
  }
}

void widen(std::span<const std::byte> bytes, std::int64_t width, std::span<std::int64_t> ids) {
  switch (width) {
    case 1:
      return widen<std::uint8_t>(bytes, ids);
    case 2:
      return widen<std::uint16_t>(bytes, ids);
    case 4:
      return widen<std::uint32_t>(bytes, ids);
    default:
      TERRACE_CHECK_EQ(width, 4);
  }
}

// At most kBufferIds.
void read_ids(const OpenFile& open, const TokenFile& file, std::int64_t first,
              std::span<std::int64_t> ids) {
  std::array<std::byte, kBufferBytes> buffer;
  const auto bytes = std::span(buffer).first(ids.size() * static_cast<std::size_t>(file.width));
  open.read(file.first_byte + static_cast<std::uint64_t>(first * file.width), bytes);
  widen(bytes, file.width, ids);
}

}  // namespace

void read_ids(const TokenFile& file, std::int64_t first, std::span<std::int64_t> out) {
  const OpenFile open(file.path);
  while (!out.empty()) {
    const auto part = out.first(std::min(out.size(), kBufferIds));
    read_ids(open, file, first, part);
    out = out.subspan(part.size());
    first += static_cast<std::int64_t>(part.size());
  }
}

TokenFiles::TokenFiles(std::vector<TokenFile> files, std::int64_t vocabulary)
    : files_(std::move(files)), vocabulary_(vocabulary) {
  std::int64_t end = 0;
  for (const TokenFile& file : files_) {
    end += file.tokens;
    ends_.push_back(end);
  }
}

bool TokenFiles::is_text() const {
  return std::ranges::any_of(files_, [](const TokenFile& file) { return file.width == 1; });
}

std::int64_t TokenFiles::count() const { return ends_.empty() ? 0 : ends_.back(); }

void TokenFiles::read(std::int64_t offset, std::span<std::int32_t> out) const {
  TERRACE_CHECK_LE(0, offset);
  TERRACE_CHECK_LE(offset + static_cast<std::int64_t>(out.size()), count());
  auto index = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), offset) -
                                        ends_.begin());
  while (!out.empty()) {
    const TokenFile& file = files_[index];
    const std::int64_t first = offset - (ends_[index] - file.tokens);
    const auto count = std::min(static_cast<std::size_t>(file.tokens - first), out.size());
    if (count > 0) read_file(file, first, out.first(count));
    out = out.subspan(count);
    offset += static_cast<std::int64_t>(count);
    ++index;
  }
}

void TokenFiles::read_file(const TokenFile& file, std::int64_t first,
                           std::span<std::int32_t> out) const {
  const OpenFile open(file.path);
  std::array<std::int64_t, kBufferIds> ids;
  while (!out.empty()) {
    const auto part = std::span(ids).first(std::min(ids.size(), out.size()));
    read_ids(open, file, first, part);
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (part[i] >= vocabulary_) {
        throw ConfigError(
            fmt::format("{}: token {} has id {}, and the model's vocabulary is {}", file.path,
                        first + static_cast<std::int64_t>(i), part[i], vocabulary_),
            "use the data's own model, or check --data-format");
      }
      out[i] = static_cast<std::int32_t>(part[i]);
    }
    out = out.subspan(part.size());
    first += static_cast<std::int64_t>(part.size());
  }
}

}  // namespace terrace
