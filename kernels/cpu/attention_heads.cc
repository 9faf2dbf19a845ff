#include "kernels/cpu/attention_heads.h"

#include <algorithm>

#include "kernels/cpu/parallel_blocks.h"

namespace terrace {

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
              std::byte* qkv, std::span<const PackedPart> parts) {
  const std::int64_t panels = blocks_of(shape.sequence, kPanel);
  const std::int64_t heads = shape.batch * shape.key_value_heads;
  const auto count = static_cast<std::int64_t>(parts.size());
  context.workers->parallel_for(heads * panels * count, [&](std::int64_t task, int) {
    const PackedPart& part = parts[static_cast<std::size_t>(task % count)];
    const std::int64_t first = task / count % panels * kPanel;
    const std::int64_t index = task / count / panels;
    const Head head{index / shape.key_value_heads, 0, index % shape.key_value_heads};
    const PackStrip source = {
        .source = part.values ? rows.value(qkv, head, first) : rows.key(qkv, head, first),
        .type = rows.dtype(),
        .stride = rows.qkv_stride()};
    part.heads.pack(source, context.workspace.data() + part.offset, head, first,
                    std::min(kPanel, shape.sequence - first));
  });
}

}  // namespace terrace
