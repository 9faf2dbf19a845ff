#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// The JSON in front of a safetensors file.
namespace terrace {

// The types of the format, in its own order.
enum class SafetensorsType : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

std::string_view name_of(SafetensorsType type);
std::uint64_t bits_of(SafetensorsType type);

struct SafetensorsTensor {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of the data
  std::uint64_t end = 0;

  std::uint64_t elements() const;
  std::uint64_t size_bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

// The longest JSON that is read.
inline constexpr std::uint64_t kSafetensorsHeaderLimit = 100'000'000;

// Parses the JSON and checks everything that the format demands: types, sizes without overflow, no
// holes, no overlap, exactly `data_bytes` covered. Throws CorruptData, which names `origin` and the
// tensor.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                           const std::string& origin);

// Returns the bytes in front of the data: length and JSON, padded with spaces so that the data
// begins at a multiple of `alignment` (a multiple of 8). Sets begin and end of each tensor, in
// their order.
std::string make_safetensors_header(SafetensorsHeader& header, std::uint64_t alignment);

}  // namespace terrace
