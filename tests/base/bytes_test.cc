#include "base/bytes.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace terrace {
namespace {

TEST(RoundUpTest, AnyAlignment) {
  EXPECT_EQ(round_up(0, 4096), 0U);
  EXPECT_EQ(round_up(1, 4096), 4096U);
  EXPECT_EQ(round_up(4096, 4096), 4096U);
  EXPECT_EQ(round_up(4097, 4096), 8192U);
  EXPECT_EQ(round_up(10, 3), 12U);
  EXPECT_EQ(divide_up(10, 3), 4U);
  EXPECT_EQ(divide_up(9, 3), 3U);
}

TEST(ParseSizeTest, ReadsUnits) {
  EXPECT_EQ(parse_size("4096"), 4096U);
  EXPECT_EQ(parse_size("0"), 0U);
  EXPECT_EQ(parse_size("10_000"), 10000U);
  EXPECT_EQ(parse_size("5e8"), 500'000'000U);
  EXPECT_EQ(parse_size("2e+16"), 20'000'000'000'000'000U);
  EXPECT_EQ(parse_size("1.5e3KB"), 1'500'000U);
  EXPECT_EQ(parse_size("1E3 MiB"), 1000 * kMiB);
  EXPECT_EQ(parse_size("7B"), 7U);
  EXPECT_EQ(parse_size("4GiB"), 4 * kGiB);
  EXPECT_EQ(parse_size("512 MiB"), 512 * kMiB);
  EXPECT_EQ(parse_size("2KiB"), 2048U);
  EXPECT_EQ(parse_size("1TiB"), kTiB);
  EXPECT_EQ(parse_size("1.5GB"), 1'500'000'000U);
  EXPECT_EQ(parse_size("3 KB"), 3000U);
  EXPECT_EQ(parse_size("2MB"), 2'000'000U);
  EXPECT_EQ(parse_size("1TB"), 1'000'000'000'000U);
  EXPECT_EQ(parse_size("0.5 KiB"), 512U);
}

TEST(ParseSizeTest, RefusesAndNamesTheText) {
  for (const char* text : {"", "GiB", "4gib", "4 G", "1.2.3MiB", "-1", "4GiB ", "0x10", "1e", "e9",
                           "1e9e9", ".", "20000000TiB", " 4GiB"}) {
    try {
      parse_size(text);
      ADD_FAILURE() << "accepted '" << text << "'";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("'" + std::string(text) + "'"), std::string::npos);
      EXPECT_FALSE(error.remedy().empty());
    }
  }
}

TEST(FormatSizeTest, ThreeDigits) {
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(1023), "1023 B");
  EXPECT_EQ(format_size(1024), "1.00 KiB");
  EXPECT_EQ(format_size(12 * kMiB), "12.0 MiB");
  EXPECT_EQ(format_size(3 * kGiB + kGiB / 4), "3.25 GiB");
  EXPECT_EQ(format_size(200 * kGiB), "200 GiB");
  EXPECT_EQ(format_size(2048 * kTiB), "2048 TiB");
}

TEST(FormatSizeTest, ReadsBack) {
  for (const std::size_t size : {std::size_t{1}, kKiB, 5 * kMiB, 640 * kMiB, 7 * kGiB, 2 * kTiB}) {
    EXPECT_EQ(parse_size(format_size(size)), size);
  }
}

TEST(FormatRateTest, CountsInThousands) {
  EXPECT_EQ(format_rate(2.41e9), "2.41 GB/s");
  EXPECT_EQ(format_rate(0), "0.00 GB/s");
}

}  // namespace
}  // namespace terrace
