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

// Reads parameters whose elements are spread over a stored tensor: those that files store
// transposed, and those that have StoredElements. It reads a band of many rows at a time and keeps
// the last two bands. Readers that continue where another stopped, also on several threads, then
// read a file only once. Thread-safe.
class TransposedBands {
 public:
  // The elements of a band, 16 MiB; a band is one row where a row has more.
  static constexpr std::int64_t kBandElements = std::int64_t{4} << 20;

  explicit TransposedBands(std::int64_t band_elements = kBandElements)
      : band_elements_(band_elements) {}

  // Reads elements [begin, begin + out.size()) of `tensor`, [rows, columns] row by row, which
  // `stored` has as its StoredElements say, or else as [columns, rows]. Throws IoError. The file
  // outlives this.
  void read(const SafetensorsFile& file, const SafetensorsTensor& stored,
            const ParameterTensor& tensor, std::int64_t begin, std::span<float> out);

 private:
  struct Band {
    const SafetensorsTensor* stored = nullptr;
    std::int64_t first = 0;  // the element of `stored` with which the parameter begins
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
  std::array<std::shared_ptr<const Band>, 2> kept_;  // the one read last comes first
};

}  // namespace terrace
