#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/reference/reference_kernels.h"
#include "memory/host/worker_arena.h"
#include "tests/kernels/host_tensor.h"
#include "tests/kernels/shared_kernels.h"

// Codes for the way between ranks: bytes and numbers that are worked out by hand, and what callers
// rely on. wire_cases.cc compares the tables with each other.
namespace terrace::test {
namespace {

using Numbers = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr auto kBlock = static_cast<std::size_t>(kWireBlock);

// Rows of codes, which begin on a boundary of 4.
class Codes {
 public:
  Codes(WireForm form, std::int64_t rows, std::int64_t row_numbers)
      : form_(form),
        rows_(rows),
        row_bytes_(coded_bytes(form, row_numbers)),
        words_(static_cast<std::size_t>(rows) * row_bytes_ / 4) {}

  TensorView view() const {
    return terrace::view(data(), DType::kU8, rows_, static_cast<std::int64_t>(row_bytes_));
  }
  WireForm form() const { return form_; }
  std::int64_t rows() const { return rows_; }
  float scale(std::int64_t row, std::size_t block) const {
    float scale = 0;
    std::memcpy(&scale, data() + static_cast<std::size_t>(row) * row_bytes_ + 4 * block, 4);
    return scale;
  }
  // Returns byte `at` of a row, as a number without sign.
  int byte(std::int64_t row, std::size_t at) const {
    return std::to_integer<int>(data()[static_cast<std::size_t>(row) * row_bytes_ + at]);
  }
  friend bool operator==(const Codes&, const Codes&) = default;

 private:
  std::byte* data() const {
    return reinterpret_cast<std::byte*>(const_cast<std::uint32_t*>(words_.data()));
  }

  WireForm form_;
  std::int64_t rows_;
  std::size_t row_bytes_;
  std::vector<std::uint32_t> words_;
};

// The ops of one table, on vectors.
class WireOps {
 public:
  explicit WireOps(const KernelTable& table) : table_(table) { context_.workers = &workers_; }

  Codes encode(WireForm form, Numbers numbers, std::int64_t rows = 1, Codes* errors = nullptr) {
    Codes codes(form, rows, static_cast<std::int64_t>(numbers.size()) / rows);
    EncodeWire op{form, view(std::span(numbers)), codes.view(), {}};
    if (errors != nullptr) op.errors = errors->view();
    table_.encode_wire(context_, op);
    return codes;
  }
  Numbers decode(const Codes& codes, std::size_t count) {
    Numbers numbers(count);
    table_.decode_wire(context_, {codes.form(), codes.view(), view(std::span(numbers))});
    return numbers;
  }
  Numbers sum(const Codes& codes, std::size_t count) {
    Numbers numbers(count);
    table_.sum_wire(context_, {codes.form(), codes.view(), view(std::span(numbers))});
    return numbers;
  }
  std::vector<Bf16> sum_in_bf16(const Codes& codes, std::size_t count) {
    std::vector<Bf16> numbers(count);
    table_.sum_wire(context_, {codes.form(), codes.view(), view(std::span(numbers))});
    return numbers;
  }

 private:
  const KernelTable& table_;
  WorkerArena workers_{1};
  KernelContext context_;
};

Codes no_errors(std::size_t numbers) {
  return {WireForm::kInt8, 1, static_cast<std::int64_t>(numbers)};
}

Numbers random_numbers(std::size_t count, Random& random, double size = 1) {
  Numbers numbers(count);
  for (float& number : numbers) number = static_cast<float>(size * random.uniform());
  return numbers;
}

class Wire : public testing::TestWithParam<const KernelTable& (*)()> {
 protected:
  WireOps ops_{GetParam()()};
};

TEST_P(Wire, Int8HasTheScalesAndThenACodeInEachByte) {
  Numbers numbers(4 * kBlock);
  // The first row has blocks with the scales 1 and 0.5, the second row 0 and 2.
  numbers[0] = -127;
  const float halves[] = {0.5F, 1.5F, 2.5F, -0.5F, -1.5F, 3.2F, -3.7F, 126.4F};
  std::ranges::copy(halves, numbers.begin() + 1);
  numbers[kBlock + 255] = 63.5F;
  numbers[kBlock + 254] = -1.25F;
  numbers[3 * kBlock + 9] = 254;
  const Codes codes = ops_.encode(WireForm::kInt8, numbers, 2);
  EXPECT_EQ(codes.scale(0, 0), 1.0F);
  EXPECT_EQ(codes.scale(0, 1), 0.5F);
  EXPECT_EQ(codes.scale(1, 0), 0.0F);
  EXPECT_EQ(codes.scale(1, 1), 2.0F);
  const int want[] = {256 - 127, 0, 2, 2, 0, 256 - 2, 3, 256 - 4, 126, 0};
  for (std::size_t i = 0; i < std::size(want); ++i) EXPECT_EQ(codes.byte(0, 8 + i), want[i]) << i;
  EXPECT_EQ(codes.byte(0, 8 + kBlock + 255), 127);
  EXPECT_EQ(codes.byte(0, 8 + kBlock + 254), 256 - 2);  // -2.5, a tie
  EXPECT_EQ(codes.byte(1, 8 + kBlock + 9), 127);
  const Numbers decoded = ops_.decode(codes, numbers.size());
  EXPECT_EQ(decoded[0], -127.0F);
  EXPECT_EQ(decoded[5], -2.0F);
  EXPECT_EQ(decoded[kBlock + 254], -1.0F);
  EXPECT_EQ(decoded[2 * kBlock], 0.0F);
  EXPECT_EQ(decoded[3 * kBlock + 9], 254.0F);
}

TEST_P(Wire, Int4HasTheTwoHalvesOfABlockInTheHalvesOfItsBytes) {
  Numbers numbers(2 * kBlock);
  numbers[0] = 7;
  numbers[128] = -7;
  numbers[1] = 2.5F;
  numbers[129] = 3.5F;
  numbers[127] = -1;
  numbers[255] = 6;
  numbers[kBlock + 130] = 14;
  const Codes codes = ops_.encode(WireForm::kInt4, numbers);
  EXPECT_EQ(codes.scale(0, 0), 1.0F);
  EXPECT_EQ(codes.scale(0, 1), 2.0F);
  EXPECT_EQ(codes.byte(0, 8), 0x1F);
  EXPECT_EQ(codes.byte(0, 9), 0xCA);
  EXPECT_EQ(codes.byte(0, 10), 0x88);
  EXPECT_EQ(codes.byte(0, 8 + 127), 0xE7);
  EXPECT_EQ(codes.byte(0, 8 + 128 + 2), 0xF8);
  const Numbers decoded = ops_.decode(codes, numbers.size());
  EXPECT_EQ(decoded[0], 7.0F);
  EXPECT_EQ(decoded[128], -7.0F);
  EXPECT_EQ(decoded[1], 2.0F);
  EXPECT_EQ(decoded[129], 4.0F);
  EXPECT_EQ(decoded[127], -1.0F);
  EXPECT_EQ(decoded[255], 6.0F);
  EXPECT_EQ(decoded[kBlock + 130], 14.0F);
}

// The quotient, the product and the decoded number are each rounded once, and the scale too: four
// units in the last place of a number, which has at most 127 steps.
TEST_P(Wire, NumbersAreOffByAtMostHalfAStep) {
  Random random(31);
  for (const WireForm form : {WireForm::kInt8, WireForm::kInt4}) {
    for (const double size : {1.0, 1e-20, 1e-29, 3e38}) {
      const Numbers numbers = random_numbers(6 * kBlock, random, size);
      const Codes codes = ops_.encode(form, numbers);
      const Numbers decoded = ops_.decode(codes, numbers.size());
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const auto step = static_cast<double>(codes.scale(0, i / kBlock));
        const double error = std::abs(static_cast<double>(decoded[i]) - numbers[i]);
        EXPECT_LE(error, step * (0.5 + 127 * 0x1p-22)) << name_of(form) << " " << size << " " << i;
      }
    }
  }
}

TEST_P(Wire, ZerosAndBlocksBelowTheLeastMagnitudeAreZero) {
  for (const WireForm form : {WireForm::kInt8, WireForm::kInt4}) {
    Numbers numbers(4 * kBlock);
    numbers[kBlock + 3] = -0x1.fffffep-101F;  // the largest that is too small
    numbers[2 * kBlock + 3] = 0x1p-149F;
    numbers[3 * kBlock + 3] = -0x1p-100F;
    const Codes codes = ops_.encode(form, numbers);
    const Numbers decoded = ops_.decode(codes, numbers.size());
    for (std::size_t i = 0; i < 3 * kBlock; ++i) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(decoded[i]), 0U) << i;
    }
    EXPECT_EQ(codes.scale(0, 1), 0.0F);
    EXPECT_EQ(codes.scale(0, 3), 0x1p-100F / largest_code(form));
    EXPECT_NEAR(decoded[3 * kBlock + 3], -0x1p-100F, 0x1p-120F);
  }
}

TEST_P(Wire, ABlockWithAnInfinityOrNanIsNanAndKeepsItsErrors) {
  Random random(32);
  for (const WireForm form : {WireForm::kInt8, WireForm::kInt4}) {
    for (const float bad : {kInfinity, -kInfinity, kNan, -kNan}) {
      Codes errors = no_errors(3 * kBlock);
      ops_.encode(form, random_numbers(3 * kBlock, random), 1, &errors);
      const Codes before = errors;
      Numbers numbers = random_numbers(3 * kBlock, random);
      numbers[kBlock + 100] = bad;
      const Codes codes = ops_.encode(form, numbers, 1, &errors);
      const Numbers decoded = ops_.decode(codes, numbers.size());
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        EXPECT_EQ(std::isnan(decoded[i]), i / kBlock == 1) << i;
      }
      EXPECT_EQ(std::bit_cast<std::uint32_t>(codes.scale(0, 1)), 0x7fc00000U);
      const int zero = form == WireForm::kInt4 ? 0x88 : 0;
      const std::size_t bytes = form == WireForm::kInt4 ? kBlock / 2 : kBlock;
      for (std::size_t i = 0; i < bytes; ++i) EXPECT_EQ(codes.byte(0, 12 + bytes + i), zero) << i;
      EXPECT_EQ(errors.scale(0, 1), before.scale(0, 1));
      EXPECT_NE(errors.scale(0, 0), before.scale(0, 0));
      for (std::size_t i = 12 + kBlock; i < 12 + 2 * kBlock; ++i) {
        EXPECT_EQ(errors.byte(0, i), before.byte(0, i)) << i;
      }
    }
  }
}

// A number may also become infinite by its error, and the largest number of fp32 by its code.
TEST_P(Wire, NumbersThatWouldBecomeInfiniteMakeTheirBlockNan) {
  Numbers numbers(kBlock);
  numbers[5] = std::numeric_limits<float>::max();
  EXPECT_TRUE(std::isnan(ops_.encode(WireForm::kInt8, numbers).scale(0, 0)));
  EXPECT_EQ(ops_.decode(ops_.encode(WireForm::kInt4, numbers), kBlock)[5], numbers[5]);
  numbers[5] = -std::nextafter(numbers[5], 0.0F);
  const Numbers decoded = ops_.decode(ops_.encode(WireForm::kInt8, numbers), kBlock);
  EXPECT_TRUE(std::isfinite(decoded[5]));

  Numbers lossy(kBlock, 0x1p118F);  // a code of 0.22 steps, of which all is lost
  lossy[0] = 0x1p127F;
  Codes errors = no_errors(kBlock);
  ops_.encode(WireForm::kInt8, lossy, 1, &errors);
  const Codes before = errors;
  lossy.assign(kBlock, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isnan(ops_.encode(WireForm::kInt8, lossy, 1, &errors).scale(0, 0)));
  EXPECT_EQ(errors, before);
}

// A block of 1 and -2 in turn, in 4 bits: the scale is 2/7, so 1 is 3.5 steps, which rounds to 4
// of them, and what is lost is 1 - 8/7.
TEST_P(Wire, ErrorsAreWhatTheCodesLost) {
  Numbers numbers(kBlock);
  for (std::size_t i = 0; i < kBlock; ++i) numbers[i] = i % 2 == 0 ? 1.0F : -2.0F;
  Codes errors = no_errors(kBlock);
  const Codes first = ops_.encode(WireForm::kInt4, numbers, 1, &errors);
  const float step = 2.0F / 7.0F;
  EXPECT_EQ(first.scale(0, 0), step);
  const float lost = 1.0F - 4.0F * step;
  EXPECT_EQ(errors.scale(0, 0), -lost / 127.0F);
  EXPECT_EQ(errors.byte(0, 4), 256 - 127);
  EXPECT_EQ(errors.byte(0, 5), 0);
  // The next time, 1 is sent as 1 - 1/7, which is 3 of the same steps.
  const Codes second = ops_.encode(WireForm::kInt4, numbers, 1, &errors);
  const Numbers decoded = ops_.decode(second, kBlock);
  EXPECT_EQ(decoded[0], 3.0F * step);
  EXPECT_EQ(decoded[1], -7.0F * step);
}

TEST_P(Wire, SumsAreExactSumsOfTheDecodedRowsInOrder) {
  Random random(33);
  for (const WireForm form : {WireForm::kInt8, WireForm::kInt4}) {
    for (const std::int64_t rows : {1, 2, 3, 8}) {
      const std::size_t row = 2 * kBlock;
      const auto count = static_cast<std::size_t>(rows);
      Numbers numbers = random_numbers(count * row, random);
      for (std::size_t i = 0; i < kBlock; ++i) numbers[i] *= 1e6F;
      const Codes codes = ops_.encode(form, numbers, rows);
      const Numbers decoded = ops_.decode(codes, numbers.size());
      const Numbers sum = ops_.sum(codes, row);
      const std::vector<Bf16> narrow = ops_.sum_in_bf16(codes, row);
      for (std::size_t i = 0; i < row; ++i) {
        float want = decoded[i];
        for (std::size_t r = 1; r < count; ++r) want += decoded[r * row + i];
        EXPECT_EQ(sum[i], want) << rows << " " << i;
        EXPECT_EQ(narrow[i].bits, to_bf16_nearest_even(want).bits) << rows << " " << i;
      }
    }
  }
}

// Returns by how many of the largest steps the sum of the decoded numbers is off after 50 rounds,
// where it is off most. But for one in each block, the numbers are near 0.4 steps.
double steps_lost(WireOps& ops, WireForm form, bool keeps_errors) {
  Random random(34);
  const std::size_t count = 3 * kBlock;
  Codes errors = no_errors(count);
  std::vector<double> sent(count);
  std::vector<double> received(count);
  double step = 0;
  for (int round = 0; round < 50; ++round) {
    Numbers numbers(count);
    for (float& number : numbers) {
      number = static_cast<float>((0.4 + 0.05 * random.uniform()) / largest_code(form));
    }
    for (std::size_t i = 0; i < count; i += kBlock) numbers[i] = 1;
    const Codes codes = ops.encode(form, numbers, 1, keeps_errors ? &errors : nullptr);
    const Numbers decoded = ops.decode(codes, count);
    for (std::size_t i = 0; i < count; ++i) {
      sent[i] += numbers[i];
      received[i] += decoded[i];
      step = std::max(step, static_cast<double>(codes.scale(0, i / kBlock)));
    }
  }
  double most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    most = std::max(most, std::abs(sent[i] - received[i]) / step);
  }
  return most;
}

// The rest that is not yet sent is at most half a step. Besides, in each round the code of the
// error is off by at most 1 part in 254 of half a step: 0.1 steps in 50 rounds.
TEST_P(Wire, WithErrorsNothingIsLostOverManyRounds) {
  for (const WireForm form : {WireForm::kInt8, WireForm::kInt4}) {
    EXPECT_LT(steps_lost(ops_, form, true), 0.61) << name_of(form);
    EXPECT_GT(steps_lost(ops_, form, false), 18.0) << name_of(form);
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, Wire,
                         testing::Values(reference_kernels, cpu_kernels, shared_kernels),
                         [](const auto& param) { return std::string(param.param().name); });

}  // namespace
}  // namespace terrace::test
