#include "runtime/checkpoint/verified_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "tests/runtime/checkpoint/counting_files.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

// A header of 24 bytes, two pieces and a part of one.
constexpr std::uint64_t kHeader = 24;
constexpr std::uint64_t kSize = kHeader + 2 * kHashPieceBytes + 1000;

std::string content() {
  std::string text(kSize, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 251);
  return text;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Hashes the text, handed over in steps of any size.
FileHashes hashes_of(const std::string& text, std::size_t step) {
  FileHasher hasher;
  const auto bytes = bytes_of(text);
  hasher.add(bytes.first(kHeader));
  hasher.end_header();
  for (std::size_t at = kHeader; at < text.size(); at += step) {
    hasher.add(bytes.subspan(at, std::min(step, text.size() - at)));
  }
  return hasher.finish();
}

class VerifiedFileTest : public testing::Test {
 protected:
  std::unique_ptr<VerifiedFile> open(const std::string& stored, PieceCache& cache) {
    const std::string path = directory_.write("file", stored);
    return std::make_unique<VerifiedFile>(files_.open(path).file, path, hashes_of(content(), 4096),
                                          cache);
  }

  const TemporaryDirectory directory_;
  CountingFiles files_;
};

TEST(FileHasher, HashesTheWholeAndItsPiecesHoweverTheyCome) {
  const std::string text = content();
  const auto bytes = bytes_of(text);
  for (const std::size_t step : {std::size_t{1000}, std::size_t{kHashPieceBytes}, text.size()}) {
    const FileHashes hashes = hashes_of(text, step);
    EXPECT_EQ(hashes.size_bytes, kSize);
    EXPECT_EQ(hashes.hash, hash_bytes(bytes));
    EXPECT_EQ(hashes.pieces.header_bytes, kHeader);
    const std::vector<std::uint64_t> expected = {
        hash_bytes(bytes.first(kHeader)), hash_bytes(bytes.subspan(kHeader, kHashPieceBytes)),
        hash_bytes(bytes.subspan(kHeader + kHashPieceBytes, kHashPieceBytes)),
        hash_bytes(bytes.last(1000))};
    EXPECT_EQ(hashes.pieces.hashes, expected) << step;
  }
}

TEST(FileHasher, AFileMayEndWithItsHeaderOrWithAPiece) {
  const std::string text = content();
  for (const std::uint64_t size : {kHeader, kHeader + kHashPieceBytes}) {
    const FileHashes hashes = hashes_of(text.substr(0, size), 4096);
    EXPECT_EQ(hashes.pieces.hashes.size(),
              PieceHashes::count(kHeader, kHashPieceBytes, hashes.size_bytes));
    EXPECT_EQ(hashes.size_bytes, size);
  }
}

TEST_F(VerifiedFileTest, GivesTheBytesAndReadsEachPieceOnce) {
  PieceCache cache(4);
  const std::string text = content();
  const auto file = open(text, cache);
  std::string got(kSize, '\0');
  for (std::uint64_t at = 0; at < kSize; at += 1001) {
    const std::size_t count = std::min<std::size_t>(1001, kSize - at);
    read_fully(*file, "file", at, std::as_writable_bytes(std::span(got.data() + at, count)));
  }
  EXPECT_EQ(got, text);
  EXPECT_EQ(files_.bytes_read(), static_cast<std::int64_t>(kSize));
  std::byte behind{};
  EXPECT_EQ(file->read_at(std::span(&behind, 1), kSize), 0);
}

TEST_F(VerifiedFileTest, NamesThePieceThatIsNotAsWritten) {
  PieceCache cache(4);
  std::string text = content();
  text[kHeader + kHashPieceBytes + 5] =
      static_cast<char>(text[kHeader + kHashPieceBytes + 5] ^ 0x10);
  const auto file = open(text, cache);
  std::vector<std::byte> out(100);
  // The pieces before and after the damaged one are good. It is not given out, however often it is
  // read.
  read_fully(*file, "file", kHeader, out);
  read_fully(*file, "file", kSize - 100, out);
  for (int i = 0; i < 2; ++i) {
    out.assign(out.size(), std::byte{1});
    TERRACE_EXPECT_THROW_WITH(read_fully(*file, "file", kHeader + kHashPieceBytes - 50, out),
                              CorruptData,
                              fmt::format("{}: the {} bytes at offset {} ", directory_.path("file"),
                                          kHashPieceBytes, kHeader + kHashPieceBytes));
    // The bytes up to the damaged piece may be given out, but not one byte of that piece.
    EXPECT_TRUE(std::all_of(out.begin() + 50, out.end(),
                            [](std::byte byte) { return byte == std::byte{1}; }));
  }
}

TEST_F(VerifiedFileTest, AFileThatHasBecomeShorterIsAnError) {
  PieceCache cache(4);
  const auto file = open(content().substr(0, kSize - 1), cache);
  std::vector<std::byte> out(10);
  EXPECT_THROW(read_fully(*file, "file", kSize - 100, out), IoError);
}

TEST_F(VerifiedFileTest, KeepsNoMoreThanItMay) {
  PieceCache cache(2);
  const auto file = open(content(), cache);
  std::vector<std::byte> out(1);
  const auto read = [&](std::uint64_t offset) {
    const std::int64_t before = files_.bytes_read();
    read_fully(*file, "file", offset, out);
    return files_.bytes_read() - before;
  };
  EXPECT_EQ(read(kHeader), static_cast<std::int64_t>(kHashPieceBytes));
  EXPECT_EQ(read(kHeader + kHashPieceBytes), static_cast<std::int64_t>(kHashPieceBytes));
  EXPECT_EQ(read(kHeader), 0);
  EXPECT_EQ(read(kSize - 1), 1000);  // replaces the one that was unused for longest
  EXPECT_EQ(read(kHeader), 0);
  EXPECT_EQ(read(kHeader + kHashPieceBytes), static_cast<std::int64_t>(kHashPieceBytes));
}

// With room for all pieces, every piece is read once, whichever thread comes first. With less room
// than threads, all threads still get the right bytes.
TEST_F(VerifiedFileTest, ThreadsShareWhatOneHasRead) {
  const std::string text = content();
  for (const std::size_t pieces_max : {8, 1}) {
    PieceCache cache(pieces_max);
    const std::int64_t before = files_.bytes_read();
    const auto file = open(text, cache);
    std::atomic<int> wrong = 0;
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::vector<std::byte> out(50'000);
        for (std::size_t i = 0; i < 40; ++i) {
          const std::uint64_t at = (i + t * 10) % 40 * 52'000;
          read_fully(*file, "file", at, out);
          if (std::memcmp(out.data(), text.data() + at, out.size()) != 0) ++wrong;
        }
      });
    }
    threads.clear();
    EXPECT_EQ(wrong, 0);
    if (pieces_max == 8) {
      EXPECT_EQ(files_.bytes_read() - before, static_cast<std::int64_t>(kSize - 1000));
    }
  }
}

}  // namespace
}  // namespace terrace
