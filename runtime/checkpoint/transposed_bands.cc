#include "runtime/checkpoint/transposed_bands.h"

#include <algorithm>
#include <utility>

#include "runtime/checkpoint/stored_values.h"

namespace terrace {
namespace {

constexpr std::int64_t kSlabElements = std::int64_t{1} << 18;

StoredElements places_of(const ParameterTensor& tensor) {
  if (tensor.stored_elements) return *tensor.stored_elements;
  return {.shape = {}, .first = 0, .row_step = 1, .column_step = tensor.rows};
}

// Elements of a parameter in the order of the file: lines, which are columns or rows of the
// parameter. Both a line and an element of it follow the one before at a fixed distance.
struct Lines {
  std::int64_t first = 0;  // element of the stored tensor
  std::int64_t count = 0, step = 0;
  std::int64_t length = 0, element_step = 0;

  // Returns the elements of the file from the first to the last one of a line.
  std::int64_t span() const { return (length - 1) * element_step + 1; }
  // Returns whether lines fill the file, so that several of them are read at once.
  bool are_dense() const { return length * element_step >= step; }
};

// Reads `lines` and calls put(line, element, value) for each element. It takes a slab of lines at a
// time, so that both sides are accessed in runs.
template <typename Put>
void read_lines(const SafetensorsFile& file, const SafetensorsTensor& stored, const Lines& lines,
                const Put& put) {
  const std::int64_t step = lines.are_dense() ? lines.step : lines.span();  // in the buffer
  const std::int64_t slab = std::clamp<std::int64_t>(kSlabElements / step, 1, lines.count);
  std::vector<float> buffer(static_cast<std::size_t>((slab - 1) * step + lines.span()));
  const auto part = [&](std::int64_t begin, std::int64_t elements) {
    return std::span(buffer).subspan(static_cast<std::size_t>(begin),
                                     static_cast<std::size_t>(elements));
  };
  for (std::int64_t l0 = 0; l0 < lines.count; l0 += slab) {
    const std::int64_t width = std::min(slab, lines.count - l0);
    if (lines.are_dense()) {
      read_values(file, stored, lines.first + l0 * lines.step,
                  part(0, (width - 1) * step + lines.span()));
    } else {
      for (std::int64_t l = 0; l < width; ++l) {
        read_values(file, stored, lines.first + (l0 + l) * lines.step,
                    part(l * step, lines.span()));
      }
    }
    for (std::int64_t i = 0; i < lines.length; ++i) {
      for (std::int64_t l = 0; l < width; ++l) {
        put(l0 + l, i, buffer[static_cast<std::size_t>(l * step + i * lines.element_step)]);
      }
    }
  }
}

// Returns rows [first, first + count) of a parameter.
std::vector<float> read_rows(const SafetensorsFile& file, const SafetensorsTensor& stored,
                             const ParameterTensor& tensor, std::int64_t first,
                             std::int64_t count) {
  const StoredElements places = places_of(tensor);
  const std::int64_t columns = tensor.columns;
  const std::int64_t begin = places.first + first * places.row_step;
  std::vector<float> values(static_cast<std::size_t>(count * columns));
  if (places.row_step < places.column_step) {
    const Lines lines = {begin, columns, places.column_step, count, places.row_step};
    read_lines(file, stored, lines, [&](std::int64_t column, std::int64_t row, float value) {
      values[static_cast<std::size_t>(row * columns + column)] = value;
    });
  } else {
    const Lines lines = {begin, count, places.row_step, columns, places.column_step};
    read_lines(file, stored, lines, [&](std::int64_t row, std::int64_t column, float value) {
      values[static_cast<std::size_t>(row * columns + column)] = value;
    });
  }
  return values;
}

}  // namespace

std::shared_ptr<const TransposedBands::Band> TransposedBands::band_of(
    const SafetensorsFile& file, const SafetensorsTensor& stored, const ParameterTensor& tensor,
    Rows rows) {
  const std::scoped_lock lock(mutex_);
  const std::int64_t first = places_of(tensor).first;
  for (const auto& band : kept_) {
    const bool is_of_tensor = band && band->stored == &stored && band->first == first;
    if (is_of_tensor && band->first_row == rows.first) return band;
  }
  kept_[1] = std::move(kept_[0]);  // frees a band before the next takes memory
  kept_[0] = std::make_shared<const Band>(
      Band{&stored, first, rows.first, read_rows(file, stored, tensor, rows.first, rows.count)});
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
