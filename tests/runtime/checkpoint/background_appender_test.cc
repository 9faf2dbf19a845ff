#include "runtime/checkpoint/background_appender.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

SafetensorsHeader header_of_bytes(std::uint64_t size) {
  SafetensorsHeader header;
  SafetensorsTensor tensor;
  tensor.name = "t";
  tensor.type = SafetensorsType::kF32;
  tensor.shape = {size / sizeof(float)};
  header.tensors.push_back(tensor);
  return header;
}

std::vector<std::byte> counted_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i % 251);
  return bytes;
}

TEST(BackgroundAppender, BytesComeInTheirOrder) {
  const TemporaryDirectory directory;
  const std::vector<std::byte> bytes = counted_bytes(std::size_t{40} << 20);
  SafetensorsWriter writer(directory.path("a"), header_of_bytes(bytes.size()));
  {
    BackgroundAppender appender(writer);
    std::span<const std::byte> rest = bytes;
    for (std::size_t size = 1; !rest.empty(); size = 3 * size + 1) {
      const auto part = rest.first(std::min(size, rest.size()));
      appender.append(part);
      rest = rest.subspan(part.size());
    }
    appender.finish();
  }
  writer.finish();
  const SafetensorsFile file(directory.path("a"));
  std::vector<std::byte> back(bytes.size());
  file.read(file.header().tensors.front(), 0, back);
  EXPECT_TRUE(back == bytes);
}

TEST(BackgroundAppender, AFailedWriteComesOutOfItsCalls) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const TemporaryDirectory directory;
  std::filesystem::create_symlink("/dev/full", directory.path("a.tmp"));
  const std::vector<std::byte> bytes = counted_bytes(std::size_t{8} << 20);
  const auto write_all = [&] {
    SafetensorsWriter writer(directory.path("a"), header_of_bytes(100 * bytes.size()));
    BackgroundAppender appender(writer);
    for (int i = 0; i < 100; ++i) appender.append(bytes);
    appender.finish();
  };
  EXPECT_THROW(write_all(), IoError);
}

TEST(BackgroundAppender, EndsWithoutWhatIsLeft) {
  const TemporaryDirectory directory;
  const std::vector<std::byte> bytes = counted_bytes(std::size_t{8} << 20);
  {
    SafetensorsWriter writer(directory.path("a"), header_of_bytes(2 * bytes.size()));
    BackgroundAppender appender(writer);
    appender.append(bytes);
  }
  EXPECT_FALSE(directory.has("a"));
  EXPECT_FALSE(directory.has("a.tmp"));
}

}  // namespace
}  // namespace terrace
