#include "runtime/checkpoint/mxfp4_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "base/error.h"

namespace terrace {
namespace {

constexpr std::int64_t kBlock = 32;       // numbers with one scale
constexpr std::int64_t kBlockBytes = 16;  // of these numbers
// Blocks that are read at a time: 1 MiB of numbers.
constexpr std::int64_t kBlocksRead = 8192;

// The numbers of 4 bits: a sign, two bits of exponent and one of mantissa.
constexpr std::array<double, 16> kNumbers = {0.0,  0.5,  1.0,  1.5,  2.0,  3.0,  4.0,  6.0,
                                             -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0};

std::vector<std::uint64_t> shape_of_scales(const ParameterTensor& tensor) {
  const std::vector<std::int64_t>& shape = tensor.stored_elements.value().shape;
  return {static_cast<std::uint64_t>(shape.at(0)), static_cast<std::uint64_t>(shape.at(2)),
          static_cast<std::uint64_t>(shape.at(1) / kBlock)};
}

void check_part(const std::string& directory, const SafetensorsTensor& part,
                const std::vector<std::uint64_t>& shape) {
  if (part.type == SafetensorsType::kU8 && part.shape == shape) return;
  throw ConfigError(
      fmt::format("{}: tensor {} is {} [{}], but according to config.json it should be U8 [{}]",
                  directory, part.name, name_of(part.type), fmt::join(part.shape, ", "),
                  fmt::join(shape, ", ")),
      "the weights and config.json belong to different models");
}

// Reads blocks [first, first + count) as numbers.
void read_blocks(const Mxfp4Tensor& stored, std::int64_t first, std::int64_t count,
                 std::vector<float>& numbers) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * kBlockBytes));
  std::vector<std::byte> scales(static_cast<std::size_t>(count));
  stored.blocks.file->read(*stored.blocks.tensor, static_cast<std::uint64_t>(first * kBlockBytes),
                           bytes);
  stored.scales.file->read(*stored.scales.tensor, static_cast<std::uint64_t>(first), scales);
  numbers.resize(static_cast<std::size_t>(count * kBlock));
  for (std::size_t block = 0; block < scales.size(); ++block) {
    // In fp64, because 2^128 is infinite in fp32, but half of it is not.
    const double scale = std::ldexp(1.0, std::to_integer<int>(scales[block]) - 127);
    for (std::size_t i = 0; i < static_cast<std::size_t>(kBlockBytes); ++i) {
      const auto pair =
          std::to_integer<std::size_t>(bytes[block * static_cast<std::size_t>(kBlockBytes) + i]);
      float* const to = numbers.data() + block * static_cast<std::size_t>(kBlock) + 2 * i;
      to[0] = static_cast<float>(kNumbers.at(pair % 16) * scale);
      to[1] = static_cast<float>(kNumbers.at(pair / 16) * scale);
    }
  }
}

// Reads numbers [first, first + out.size()) of the stored [E,B,A].
void read_numbers(const Mxfp4Tensor& stored, std::int64_t first, std::span<float> out) {
  std::vector<float> numbers;
  while (!out.empty()) {
    const std::int64_t block = first / kBlock;
    const std::int64_t before = first % kBlock;
    const std::int64_t blocks =
        (before + static_cast<std::int64_t>(out.size()) + kBlock - 1) / kBlock;
    read_blocks(stored, block, std::min(blocks, kBlocksRead), numbers);
    const std::size_t count =
        std::min(out.size(), numbers.size() - static_cast<std::size_t>(before));
    std::copy_n(numbers.begin() + before, count, out.begin());
    out = out.subspan(count);
    first += static_cast<std::int64_t>(count);
  }
}

}  // namespace

void check_mxfp4(const std::string& directory, const Mxfp4Tensor& stored,
                 const ParameterTensor& tensor) {
  if (tensor.stored_elements.value().shape.at(1) % kBlock != 0) {
    throw ConfigError(
        fmt::format("{}: tensor {} has columns of {} numbers, which are not whole blocks of {}",
                    directory, stored.blocks.tensor->name, tensor.stored_elements->shape.at(1),
                    kBlock),
        "the weights and config.json belong to different models");
  }
  std::vector<std::uint64_t> shape = shape_of_scales(tensor);
  check_part(directory, *stored.scales.tensor, shape);
  shape.push_back(kBlockBytes);
  check_part(directory, *stored.blocks.tensor, shape);
}

void read_mxfp4(const Mxfp4Tensor& stored, const ParameterTensor& tensor, std::int64_t begin,
                std::span<float> out) {
  const StoredElements& places = tensor.stored_elements.value();
  const std::int64_t depth = places.shape.at(1);
  const std::int64_t width = places.shape.at(2);
  TERRACE_CHECK_EQ(places.column_step, width);
  TERRACE_CHECK_EQ(tensor.columns, depth);
  while (!out.empty()) {
    const std::int64_t row = begin / tensor.columns;
    const std::int64_t column = begin % tensor.columns;
    const std::int64_t place = places.first + row * places.row_step;            // of column 0
    const std::int64_t line = place / (depth * width) * width + place % width;  // in [E,B]
    const std::size_t count =
        std::min(out.size(), static_cast<std::size_t>(tensor.columns - column));
    read_numbers(stored, line * depth + column, out.first(count));
    out = out.subspan(count);
    begin += static_cast<std::int64_t>(count);
  }
}

}  // namespace terrace
