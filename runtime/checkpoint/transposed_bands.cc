#include "runtime/checkpoint/transposed_bands.h"

#include <algorithm>
#include <utility>

#include "runtime/checkpoint/stored_values.h"

namespace terrace {
namespace {

constexpr std::int64_t kSlabElements = std::int64_t{1} << 18;

// Returns rows [first, first + count) of a tensor that is stored as [columns, rows]. It takes a
// slab of the file's rows at a time, so that both sides are accessed in runs.
std::vector<float> read_rows(const SafetensorsFile& file, const SafetensorsTensor& stored,
                             const ParameterTensor& tensor, std::int64_t first,
                             std::int64_t count) {
  const std::int64_t columns = tensor.columns;
  std::vector<float> values(static_cast<std::size_t>(count * columns));
  const std::int64_t slab = std::clamp<std::int64_t>(kSlabElements / count, 1, columns);
  std::vector<float> buffer(static_cast<std::size_t>(slab * count));
  for (std::int64_t c0 = 0; c0 < columns; c0 += slab) {
    const std::int64_t width = std::min(slab, columns - c0);
    const std::span<float> part = std::span(buffer).first(static_cast<std::size_t>(width * count));
    if (count == tensor.rows) {
      read_values(file, stored, c0 * count, part);
    } else {
      for (std::int64_t c = 0; c < width; ++c) {
        read_values(
            file, stored, (c0 + c) * tensor.rows + first,
            part.subspan(static_cast<std::size_t>(c * count), static_cast<std::size_t>(count)));
      }
    }
    for (std::int64_t r = 0; r < count; ++r) {
      float* const row = values.data() + r * columns + c0;
      for (std::int64_t c = 0; c < width; ++c)
        row[c] = part[static_cast<std::size_t>(c * count + r)];
    }
  }
  return values;
}

}  // namespace

std::shared_ptr<const TransposedBands::Band> TransposedBands::band_of(
    const SafetensorsFile& file, const SafetensorsTensor& stored, const ParameterTensor& tensor,
    Rows rows) {
  const std::scoped_lock lock(mutex_);
  for (const auto& band : kept_) {
    if (band && band->stored == &stored && band->first_row == rows.first) return band;
  }
  kept_[1] = std::move(kept_[0]);  // frees a band before the next takes memory
  kept_[0] = std::make_shared<const Band>(
      Band{&stored, rows.first, read_rows(file, stored, tensor, rows.first, rows.count)});
  return kept_[0];
}

void TransposedBands::read(const SafetensorsFile& file, const SafetensorsTensor& stored,
                           const ParameterTensor& tensor, std::int64_t begin,
                           std::span<float> out) {
  const std::int64_t columns = tensor.columns;
  const std::int64_t height = std::clamp<std::int64_t>(band_elements_ / columns, 1, tensor.rows);
  while (!out.empty()) {
    const std::int64_t first = begin / columns / height * height;
    const Rows rows = {first, std::min(height, tensor.rows - first)};
    const auto band = band_of(file, stored, tensor, rows);
    const std::int64_t at = begin - first * columns;
    const std::size_t count =
        std::min(out.size(), band->values.size() - static_cast<std::size_t>(at));
    std::copy_n(band->values.begin() + at, count, out.begin());
    out = out.subspan(count);
    begin += static_cast<std::int64_t>(count);
  }
}

}  // namespace terrace
