#include "runtime/model/matrix_quantizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "base/half.h"
#include "kernels/cpu/cpu_kernels.h"

// The numbers in quantised matrices, compared with an encoder and a decoder in double precision
// that are written here from the papers.
namespace terrace {
namespace {

constexpr std::int64_t kBlock = 64;
constexpr std::int64_t kGroup = 256;

// Returns the number below which `probability` of a normal distribution lies, found by bisection.
double normal_quantile(double probability) {
  double low = -9;
  double high = 9;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < probability ? low : high) = middle;
  }
  return low;
}

// Dettmers et al. 2023, section 3 and appendix E: eight levels up to 1 and eight from -1. They are
// at equal steps of probability from the outermost level to one half. The outermost probability is
// the mean of the middles of the two halves' last parts. Both halves contain the zero.
std::vector<double> normal_float_levels() {
  const double outermost = (1.0 - 1.0 / 32.0 + 1.0 - 1.0 / 30.0) / 2;
  std::vector<double> levels = {0.0};
  for (int i = 0; i < 8; ++i) {
    levels.push_back(normal_quantile(outermost + (0.5 - outermost) * i / 8));
  }
  for (int i = 0; i < 7; ++i) {
    levels.push_back(-normal_quantile(outermost + (0.5 - outermost) * i / 7));
  }
  std::ranges::sort(levels);
  for (double& level : levels) level /= normal_quantile(outermost);
  return levels;
}

// Dynamic tree quantisation. A magnitude with e bits of fraction is the middle between two
// neighbours of 2^e + 1 numbers from 0.1 to 1, times a power of ten that is a tenth of the power
// for e + 1. Zero and one are levels too.
std::vector<double> dynamic_tree_levels() {
  std::vector<double> levels = {0.0, 1.0};
  for (int e = 0; e < 7; ++e) {
    const int parts = 1 << e;
    for (int i = 0; i < parts; ++i) {
      const double from = 0.1 + 0.9 * i / parts;
      const double to = 0.1 + 0.9 * (i + 1) / parts;
      const double magnitude = std::pow(10.0, e - 6) * (from + to) / 2;
      levels.push_back(magnitude);
      levels.push_back(-magnitude);
    }
  }
  std::ranges::sort(levels);
  return levels;
}

double nearest(const std::vector<double>& levels, double number) {
  return *std::ranges::min_element(levels, {},
                                   [number](double level) { return std::abs(level - number); });
}

std::vector<double> scales_of(const std::vector<float>& numbers) {
  std::vector<double> scales;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i % kBlock == 0) scales.push_back(0);
    scales.back() = std::max(scales.back(), std::abs(static_cast<double>(numbers[i])));
  }
  return scales;
}

// Returns the scales as they come back from their codes.
std::vector<double> doubly_quantized(std::vector<double> scales) {
  static const std::vector<double> kLevels = dynamic_tree_levels();
  const double mean =
      std::accumulate(scales.begin(), scales.end(), 0.0) / static_cast<double>(scales.size());
  for (std::size_t first = 0; first < scales.size(); first += kGroup) {
    const std::size_t end = std::min<std::size_t>(first + kGroup, scales.size());
    double factor = 0;
    for (std::size_t i = first; i < end; ++i) factor = std::max(factor, std::abs(scales[i] - mean));
    for (std::size_t i = first; i < end; ++i) {
      scales[i] = mean + (factor > 0 ? nearest(kLevels, (scales[i] - mean) / factor) * factor : 0);
    }
  }
  return scales;
}

std::vector<double> reference_numbers(QuantizedForm form, const std::vector<float>& numbers) {
  static const std::vector<double> kLevels = normal_float_levels();
  const std::vector<double> scales = scales_of(numbers);
  const bool is_nf4 = form == QuantizedForm::kNf4;
  const std::vector<double> restored = is_nf4 ? doubly_quantized(scales) : scales;
  std::vector<double> result;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double scale = scales[i / kBlock];
    // Multiplies by 127 before the division, which is exact if a number has few bits.
    const double unit = scale > 0 ? (is_nf4 ? 1.0 : 127.0) * numbers[i] / scale : 0;
    result.push_back(restored[i / kBlock] *
                     (is_nf4 ? nearest(kLevels, unit) : std::nearbyint(unit) / 127));
  }
  return result;
}

std::vector<float> random_matrix(std::int64_t elements, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, 0.02F);
  std::vector<float> numbers(static_cast<std::size_t>(elements));
  for (float& number : numbers) number = normal(generator);
  return numbers;
}

std::vector<std::byte> quantized(const QuantizedShape& shape, const std::vector<float>& numbers,
                                 int threads = 1) {
  WorkerArena workers(threads);
  const auto read = [&](std::int64_t begin, std::span<float> out) {
    std::copy_n(numbers.begin() + begin, out.size(), out.begin());
  };
  return quantize_matrix(shape, read, workers);
}

// Returns the numbers that the kernels of the CPU make of the bytes.
std::vector<float> restored(const QuantizedShape& shape, std::vector<std::byte> bytes) {
  std::vector<float> numbers(static_cast<std::size_t>(shape.elements));
  WorkerArena workers(1);
  KernelContext context;
  context.workers = &workers;
  cpu_kernels().dequantize(context, {view(bytes.data(), DType::kU8, shape.size_bytes()), shape,
                                     view(std::span(numbers))});
  return numbers;
}

class MatrixQuantizer : public testing::TestWithParam<QuantizedForm> {};

TEST_P(MatrixQuantizer, HasTheNumbersOfTheReference) {
  // The sizes are within a block, of blocks with a rest, and of several groups of scales. The last
  // one has numbers of few bits, many of which lie in the middle between two codes.
  for (const std::int64_t elements : {1, 63, 64, 1000, 40 * 777, 70000, 70001}) {
    const QuantizedShape shape = {.form = GetParam(), .elements = elements};
    std::vector<float> numbers = random_matrix(elements, 7);
    if (elements == 70001) {
      for (float& number : numbers) number = to_float(to_bf16_nearest_even(number));
    }
    const std::vector<float> got = restored(shape, quantized(shape, numbers));
    const std::vector<double> want = reference_numbers(GetParam(), numbers);
    const std::vector<double> scales = scales_of(numbers);
    for (std::size_t i = 0; i < got.size(); ++i) {
      // Allows for roundings of fp32 and of the tables. Levels are at least a hundredth of the
      // scale apart.
      ASSERT_NEAR(got[i], want[i], 2e-6 * scales[i / kBlock]) << elements << " " << i;
    }
  }
}

TEST_P(MatrixQuantizer, HasNoOtherBytesWithMoreThreads) {
  const QuantizedShape shape = {.form = GetParam(), .elements = 70000};
  const std::vector<float> numbers = random_matrix(shape.elements, 8);
  EXPECT_EQ(quantized(shape, numbers, 3), quantized(shape, numbers));
}

TEST_P(MatrixQuantizer, OfAPartHasTheNumbersOfTheWhole) {
  constexpr std::int64_t kRunBlocks = 5;
  constexpr std::int64_t kRuns = 120;
  constexpr std::int64_t kRanks = 3;
  const QuantizedShape whole = {.form = GetParam(),
                                .elements = kRuns * kRanks * kRunBlocks * kBlock};
  const std::vector<float> numbers = random_matrix(whole.elements, 9);
  const std::vector<float> want = restored(whole, quantized(whole, numbers));
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    const QuantizedShape part = {.form = GetParam(),
                                 .elements = whole.elements / kRanks,
                                 .run_blocks = kRunBlocks,
                                 .ranks = kRanks,
                                 .rank = rank};
    const std::vector<float> got = restored(part, quantized(part, numbers));
    constexpr std::int64_t kRun = kRunBlocks * kBlock;
    for (std::int64_t i = 0; i < part.elements; ++i) {
      const std::int64_t of_whole = (i / kRun * kRanks + rank) * kRun + i % kRun;
      ASSERT_EQ(got[static_cast<std::size_t>(i)], want[static_cast<std::size_t>(of_whole)]);
    }
  }
}

TEST_P(MatrixQuantizer, KeepsZerosAndTellsOfWhatIsNotFinite) {
  const QuantizedShape shape = {.form = GetParam(), .elements = 4 * kBlock};
  std::vector<float> numbers(static_cast<std::size_t>(shape.elements), 0.0F);
  EXPECT_EQ(restored(shape, quantized(shape, numbers)), numbers);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    numbers = random_matrix(shape.elements, 10);
    numbers[kBlock + 3] = bad;
    const std::vector<float> got = restored(shape, quantized(shape, numbers));
    EXPECT_TRUE(std::isnan(got[kBlock + 3]));
  }
}

TEST_P(MatrixQuantizer, TakesTheBytesThatAreSaidOfIt) {
  const bool is_nf4 = GetParam() == QuantizedForm::kNf4;
  const QuantizedShape shape = {.form = GetParam(), .elements = 4096 * 4096};
  const auto elements = static_cast<double>(shape.elements);
  const double bits = 8.0 * static_cast<double>(shape.size_bytes()) / elements;
  EXPECT_NEAR(bits, is_nf4 ? 4.0 + 8.0 / 64 + 32.0 / (64 * 256) : 8.0 + 32.0 / 64, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Forms, MatrixQuantizer,
                         testing::Values(QuantizedForm::kNf4, QuantizedForm::kInt8),
                         [](const auto& info) {
                           return info.param == QuantizedForm::kNf4 ? "nf4" : "int8";
                         });

TEST(QuantizedLevels, AreThoseOfThePapers) {
  const std::vector<double> normal = normal_float_levels();
  ASSERT_EQ(normal.size(), 16U);
  for (int code = 0; code < 16; ++code) {
    // The published table was computed in single precision.
    EXPECT_NEAR(nf4_level(code), normal[static_cast<std::size_t>(code)], 1e-5) << code;
  }
  const std::vector<double> dynamic = dynamic_tree_levels();
  ASSERT_EQ(dynamic.size(), 256U);
  for (int code = 0; code < 256; ++code) {
    EXPECT_NEAR(dynamic_level(code), dynamic[static_cast<std::size_t>(code)], 1e-7) << code;
  }
}

}  // namespace
}  // namespace terrace
