#include "kernels/cpu/attention_heads.h"

#include <algorithm>

#include "kernels/cpu/parallel_blocks.h"

namespace terrace {

FirstKeys::FirstKeys(const AttentionShape& shape, const AttentionRule& rule)
    : positions_before_(shape.keys - shape.queries),
      queries_(shape.queries),
      window_(rule.window),
      starts_(rule.first_keys.empty() ? nullptr : rule.first_keys.as<std::int32_t>()) {
  if (starts_ != nullptr) {
    TERRACE_CHECK_EQ(rule.first_keys.elements(), shape.batch * shape.queries);
  }
}

void FirstKeys::look(std::int64_t b, std::int64_t query, std::int64_t count) {
  TERRACE_CHECK_LE(count, kQueriesMax);
  if (window_ <= 0 && starts_ == nullptr) return;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t position = positions_before_ + query + i;
    std::int64_t first = window_ > 0 ? std::max<std::int64_t>(0, position + 1 - window_) : 0;
    if (starts_ != nullptr) {
      first = std::max<std::int64_t>(first, starts_[b * queries_ + query + i]);
      TERRACE_CHECK_LE(first, position);
    }
    keys_[i] = first;
    first_ = i == 0 ? first : std::min(first_, first);
    last_ = i == 0 ? first : std::max(last_, first);
  }
}

void PackedHeads::pack(const PackStrip& source, std::byte* packed, const Head& head, std::int64_t t,
                       std::int64_t count) const {
  PackStrip strip = source;
  strip.target = from(packed, head, t);
  const std::int64_t extent = columns_ == Columns::kKeys ? count : shape_.head_width;
  strip.depth = columns_ == Columns::kKeys ? shape_.head_width : count;
  strip.depth_contiguous = columns_ == Columns::kKeys;
  const std::int64_t across = strip.depth_contiguous ? strip.stride : 1;
  for (std::int64_t first = 0; first < extent; first += kStrip) {
    strip.width = std::min(kStrip, extent - first);
    code_.pack_right(strip);
    strip.source += kStrip * across * static_cast<std::int64_t>(size_of(strip.type));
    strip.target += code_.bytes(stride());
  }
}

void pack_all(const KernelContext& context, const HeadRows& rows, const AttentionShape& shape,
              std::span<const PackedPart> parts) {
  const std::int64_t panels = blocks_of(shape.keys, kPanel);
  const std::int64_t heads = shape.batch * shape.key_value_heads;
  const auto count = static_cast<std::int64_t>(parts.size());
  context.workers->parallel_for(heads * panels * count, [&](std::int64_t task, int) {
    const PackedPart& part = parts[static_cast<std::size_t>(task % count)];
    const std::int64_t first = task / count % panels * kPanel;
    const std::int64_t index = task / count / panels;
    const Head head{index / shape.key_value_heads, 0, index % shape.key_value_heads};
    const PackStrip source = {.source = rows.key(part.rows, head, first),
                              .type = rows.dtype(),
                              .stride = part.rows.stride};
    part.heads.pack(source, context.workspace.data() + part.offset, head, first,
                    std::min(kPanel, shape.keys - first));
  });
}

}  // namespace terrace
