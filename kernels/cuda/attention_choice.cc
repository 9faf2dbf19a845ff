#include "kernels/cuda/attention_choice.h"

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/error.h"

namespace terrace {
namespace {

constexpr std::int64_t kTile = 128;
constexpr std::int64_t kScoreBytes = 2;  // of an element
constexpr std::int64_t kRowsOnBoundary = 16 / sizeof(float);

constexpr std::int64_t kHeadWidthStep = 8;
constexpr std::int64_t kHeadWidthMax = 128;

std::string refusal_of(const AttentionShape& s, const AttentionRule& rule,
                       std::initializer_list<StridedRows> matrices) {
  if (s.head_width % kHeadWidthStep != 0 || s.head_width > kHeadWidthMax) {
    return fmt::format("heads of {} elements", s.head_width);
  }
  if (s.queries != s.keys) return "fewer queries than keys";
  if (rule.soft_cap > 0.0F) return "a soft cap on scores";
  if (!rule.first_keys.empty()) return "several documents in a sequence";
  if (!rule.sinks.empty()) return "attention sinks";
  for (const StridedRows& rows : matrices) {
    if (rows.dtype != DType::kBF16 && rows.dtype != DType::kF16) return "neither bf16 nor fp16";
    if (rows.stride % kHeadWidthStep != 0) return "rows that are not aligned";
  }
  return {};
}

std::int64_t padded(std::int64_t sequence) { return (sequence + kTile - 1) / kTile * kTile; }

std::int64_t largest_divisor(std::int64_t of, std::int64_t at_most) {
  std::int64_t divisor = at_most < of ? at_most : of;
  while (of % divisor != 0) --divisor;
  return divisor;
}

}  // namespace

AttentionChoice attention_choice(const char* value) {
  const std::string_view text = value == nullptr ? "" : value;
  if (text.empty() || text == "cudnn") return AttentionChoice::kCudnn;
  if (text == "own") return AttentionChoice::kOwn;
  throw ConfigError(fmt::format("TERRACE_ATTENTION={}: not an attention kernel", text),
                    "set it to own or cudnn, or unset it");
}

std::string cudnn_refusal(const AttentionForward& op) {
  return refusal_of(op.shape, op.rule, {op.q, op.k, op.v});
}

std::string cudnn_refusal(const AttentionBackward& op) {
  return refusal_of(op.shape, op.rule, {op.q, op.k, op.v, op.dq, op.dk, op.dv});
}

std::optional<AttentionPart> attention_part(const AttentionShape& s, std::size_t score_bytes) {
  const std::int64_t heads = s.heads / s.key_value_heads;
  const std::int64_t square = padded(s.queries) * padded(s.queries) * kScoreBytes;
  const std::int64_t room = static_cast<std::int64_t>(score_bytes) / (heads * square);
  if (room == 0) return std::nullopt;
  AttentionPart part;
  if (room >= s.key_value_heads) {
    part = {largest_divisor(s.batch, room / s.key_value_heads), s.key_value_heads};
  } else {
    part = {1, largest_divisor(s.key_value_heads, room)};
  }
  if (part.sequences * part.groups * heads * s.queries % kRowsOnBoundary != 0) return std::nullopt;
  return part;
}

std::size_t cudnn_part_bytes(const AttentionShape& s, const AttentionPart& part) {
  constexpr std::int64_t kSumBytes = sizeof(float);
  const std::int64_t heads = s.heads / s.key_value_heads;
  const std::int64_t rows = part.sequences * part.groups * heads * padded(s.queries);
  const std::int64_t head_sums = heads == 1 ? 1 : 3;  // queries; keys and values
  const std::int64_t row_bytes =
      padded(s.queries) * kScoreBytes + head_sums * s.head_width * kSumBytes + 2 * kSumBytes;
  return static_cast<std::size_t>(rows * row_bytes) + kMiB;
}

}  // namespace terrace
