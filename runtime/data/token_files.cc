#include "runtime/data/token_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "runtime/data/readable_file.h"

namespace terrace {
namespace {

static_assert(std::endian::native == std::endian::little, "ids in files are little-endian");

// Three buffers of this size are on the stack, which may be small.
constexpr std::size_t kBufferBytes = 4096;
constexpr std::size_t kBufferIds = kBufferBytes / 4;  // of the widest ids

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

// Reads at most kBufferIds ids.
void read_ids(const ReadableFile& open, const TokenFile& file, std::int64_t first,
              std::span<std::int64_t> ids) {
  std::array<std::byte, kBufferBytes> buffer;
  const auto bytes = std::span(buffer).first(ids.size() * static_cast<std::size_t>(file.width));
  open.read(file.first_byte + static_cast<std::uint64_t>(first * file.width), bytes);
  widen(bytes, file.width, ids);
}

}  // namespace

void read_ids(const TokenFile& file, std::int64_t first, std::span<std::int64_t> out) {
  const ReadableFile open(file.path);
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
  return std::ranges::any_of(files_,
                             [](const TokenFile& file) { return file.width == 1 || file.is_text; });
}

std::int64_t TokenFiles::count() const { return ends_.empty() ? 0 : ends_.back(); }

template <typename T, typename ReadPart>
void TokenFiles::for_each_part(std::int64_t offset, std::span<T> out, ReadPart read_part) const {
  TERRACE_CHECK_LE(0, offset);
  TERRACE_CHECK_LE(offset + static_cast<std::int64_t>(out.size()), count());
  auto index = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), offset) -
                                        ends_.begin());
  while (!out.empty()) {
    const TokenFile& file = files_[index];
    const std::int64_t first = offset - (ends_[index] - file.tokens);
    const auto count = std::min(static_cast<std::size_t>(file.tokens - first), out.size());
    if (count > 0) read_part(file, first, out.first(count));
    out = out.subspan(count);
    offset += static_cast<std::int64_t>(count);
    ++index;
  }
}

void TokenFiles::read(std::int64_t offset, std::span<std::int32_t> out) const {
  for_each_part(offset, out,
                [this](const TokenFile& file, std::int64_t first, std::span<std::int32_t> part) {
                  read_file(file, first, part);
                });
}

bool TokenFiles::has_mask() const {
  return std::ranges::any_of(files_, [](const TokenFile& file) { return !file.mask_path.empty(); });
}

void TokenFiles::read_mask(std::int64_t offset, std::span<std::uint8_t> out) const {
  for_each_part(
      offset, out, [](const TokenFile& file, std::int64_t first, std::span<std::uint8_t> part) {
        if (file.mask_path.empty()) {
          std::ranges::fill(part, 1);
          return;
        }
        const ReadableFile open(file.mask_path);
        open.read(static_cast<std::uint64_t>(first), std::as_writable_bytes(part));
        const auto wrong = std::ranges::find_if(part, [](auto byte) { return byte > 1; });
        if (wrong == part.end()) return;
        throw CorruptData(fmt::format("{}: byte {} is {}, but a mask consists of 0 and 1",
                                      file.mask_path, first + (wrong - part.begin()), *wrong),
                          "make the file again");
      });
}

bool TokenFiles::has_documents() const {
  return std::ranges::all_of(files_, [](const TokenFile& file) {
    return file.documents.kind != DocumentIndex::Kind::kNone;
  });
}

void TokenFiles::visit_documents(FunctionRef<void(std::int64_t end)> visit) const {
  std::int64_t before = 0;
  for (const TokenFile& file : files_) {
    visit_ends(file.documents, file.tokens, [&](std::int64_t end) { visit(before + end); });
    before += file.tokens;
  }
}

void TokenFiles::read_file(const TokenFile& file, std::int64_t first,
                           std::span<std::int32_t> out) const {
  const ReadableFile open(file.path);
  std::array<std::int64_t, kBufferIds> ids;
  while (!out.empty()) {
    const auto part = std::span(ids).first(std::min(ids.size(), out.size()));
    read_ids(open, file, first, part);
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (part[i] >= vocabulary_) {
        throw ConfigError(
            fmt::format("{}: token {} has id {}, but the model's vocabulary is {}", file.path,
                        first + static_cast<std::int64_t>(i), part[i], vocabulary_),
            "use the model that belongs to the data, or check --data-format");
      }
      out[i] = static_cast<std::int32_t>(part[i]);
    }
    out = out.subspan(part.size());
    first += static_cast<std::int64_t>(part.size());
  }
}

}  // namespace terrace
