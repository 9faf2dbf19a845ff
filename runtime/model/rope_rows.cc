#include "runtime/model/rope_rows.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "runtime/model/rope_table.h"

namespace terrace {

std::int64_t row_angles(const DecoderOptions& model, std::int64_t length) {
  std::int64_t angles = 0;
  bool differ = false;
  for (const RopeOptions& rope : model.ropes) {
    angles += model.rotated_width();
    differ = differ || length > longest_short_document(rope);
  }
  return differ ? angles : 0;
}

RopeRows::RopeRows(std::vector<RopeOptions> ropes, std::int64_t rotary_width)
    : ropes_(std::move(ropes)), rotary_width_(rotary_width), tables_(ropes_.size()) {}

void RopeRows::fill(std::span<const std::int32_t> lengths, std::span<std::byte> out) {
  const std::size_t row_bytes = static_cast<std::size_t>(rotary_width_) * sizeof(float);
  TERRACE_CHECK_EQ(out.size(), ropes_.size() * lengths.size() * row_bytes);
  for (std::size_t rope = 0; rope < ropes_.size(); ++rope) {
    for (std::size_t row = 0; row < lengths.size();) {
      const auto length = static_cast<std::size_t>(lengths[row]);
      TERRACE_CHECK_LT(0U, length);
      TERRACE_CHECK_LE(row + length, lengths.size());
      const auto bytes = std::as_bytes(table_of(rope, lengths[row])).first(length * row_bytes);
      std::memcpy(out.data(), bytes.data(), bytes.size());
      out = out.subspan(bytes.size());
      row += length;
    }
  }
}

std::span<const float> RopeRows::table_of(std::size_t rope, std::int64_t length) {
  const RopeOptions& options = ropes_[rope];
  Table& table = tables_[rope][length > longest_short_document(options) ? 1 : 0];
  std::vector<float> frequencies = rope_frequencies(options, length, rotary_width_);
  const auto elements = static_cast<std::size_t>(length * rotary_width_);
  if (table.frequencies != frequencies || table.rows.size() < elements) {
    table.frequencies = std::move(frequencies);
    table.rows.resize(elements);
    fill_rope_table(options, length, rotary_width_, table.rows);
  }
  return table.rows;
}

}  // namespace terrace
