#include "runtime/checkpoint/transposed_bands.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

constexpr std::int64_t kRows = 53;
constexpr std::int64_t kColumns = 37;

// Element (r, c) of the parameter is r * kColumns + c; the file has it as [columns, rows].
class TransposedBandsTest : public testing::TestWithParam<std::int64_t> {
 protected:
  TransposedBandsTest() {
    std::vector<float> turned;
    for (std::int64_t c = 0; c < kColumns; ++c) {
      for (std::int64_t r = 0; r < kRows; ++r) {
        turned.push_back(static_cast<float>(r * kColumns + c));
      }
    }
    SafetensorsHeader header;
    header.tensors.push_back(
        {.name = "w", .type = SafetensorsType::kF32, .shape = {kColumns, kRows}});
    SafetensorsWriter writer(path_, std::move(header));
    writer.append(std::as_bytes(std::span(turned)));
    writer.finish();
    tensor_.rows = kRows;
    tensor_.columns = kColumns;
  }

  // Reads parts of many sizes, in an order of this thread's own.
  void read_parts(TransposedBands& bands, const SafetensorsFile& file, std::uint32_t seed) const {
    std::mt19937 random(seed);
    for (int n = 0; n < 200; ++n) {
      const auto begin = static_cast<std::int64_t>(random() % (kRows * kColumns));
      const auto most = static_cast<std::uint32_t>(kRows * kColumns - begin);
      std::vector<float> got(1 + random() % most);
      bands.read(file, *file.find("w"), tensor_, begin, got);
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], static_cast<float>(begin + static_cast<std::int64_t>(i)));
      }
    }
  }

  const TemporaryDirectory temporary_;
  const std::string path_ = temporary_.path("w.safetensors");
  ParameterTensor tensor_;
};

TEST_P(TransposedBandsTest, PartsAreTheParametersOwnRows) {
  const SafetensorsFile file(path_);
  TransposedBands bands(GetParam());
  read_parts(bands, file, 1);
}

TEST_P(TransposedBandsTest, ThreadsShareThem) {
  const SafetensorsFile file(path_);
  TransposedBands bands(GetParam());
  std::jthread other([&] { read_parts(bands, file, 2); });
  read_parts(bands, file, 3);
}

// Bands of one row, of some rows that do not divide all, and of all rows.
INSTANTIATE_TEST_SUITE_P(BandElements, TransposedBandsTest,
                         testing::Values(1, 5 * kColumns, TransposedBands::kBandElements));

}  // namespace
}  // namespace terrace
