#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/checkpoint/safetensors.h"
#include "runtime/model/parameter_layout.h"

namespace terrace {

// Reads parameters that files have transposed. The elements of one of their rows lie in all rows of
// the file, so it reads a band of many rows at a time, and keeps the last two bands: readers that
// go on from each other, on several threads too, read a file once. Thread-safe.
class TransposedBands {
 public:
  // Of a band, 16 MiB; one row where that has more.
  static constexpr std::int64_t kBandElements = std::int64_t{4} << 20;

  explicit TransposedBands(std::int64_t band_elements = kBandElements)
      : band_elements_(band_elements) {}

  // Elements [begin, begin + out.size()) of `tensor`, [rows, columns] row by row, which `stored`
  // has as [columns, rows]. Throws IoError. The file outlives this.
  void read(const SafetensorsFile& file, const SafetensorsTensor& stored,
            const ParameterTensor& tensor, std::int64_t begin, std::span<float> out);

 private:
  struct Band {
    const SafetensorsTensor* stored = nullptr;
    std::int64_t first_row = 0;
    std::vector<float> values;  // whole rows
  };
  struct Rows {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };

  std::shared_ptr<const Band> band_of(const SafetensorsFile& file, const SafetensorsTensor& stored,
                                      const ParameterTensor& tensor, Rows rows);

  const std::int64_t band_elements_;
  std::mutex mutex_;
  std::array<std::shared_ptr<const Band>, 2> kept_;  // the one that was read last first
};

}  // namespace terrace
