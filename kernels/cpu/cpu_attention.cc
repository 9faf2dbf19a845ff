#include "kernels/cpu/cpu_attention.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/block_gemm.h"
#include "kernels/cpu/cpu_softmax.h"
#include "kernels/cpu/cpu_workspace.h"

// Letters: B batch, T sequence, H query heads, G key-value heads, D head width, Q queries of a
// block, P keys of a panel.
namespace terrace {
namespace {

// Queries of a block, and keys of the panel that it meets at a time. The fp32 scores of a block and
// a panel are 256 KiB, so that scores, weights and their gradients stay in a second-level cache.
// Both are fixed: another size would be another order of sums. The panel is a multiple of the
// block, so that no query has a panel without visible keys.
constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kPanel = 512;
static_assert(kPanel % kBlock == 0);
// Rows of scores that were a power of two apart would share few sets of the caches: half the speed.
constexpr std::int64_t kScoreStride = kPanel + 16;
constexpr std::int64_t kScoreElements = kBlock * kScoreStride;

std::int64_t block_count(std::int64_t sequence) { return (sequence + kBlock - 1) / kBlock; }

// One head of one batch row: where its rows lie, and how far they are apart.
struct Head {
  std::int64_t b = 0, h = 0, g = 0;
};

class HeadRows {
 public:
  HeadRows(const AttentionShape& shape, DType dtype)
      : shape_(shape), dtype_(dtype), bytes_(static_cast<std::int64_t>(size_of(dtype))) {
    TERRACE_CHECK_EQ(shape.heads % shape.key_value_heads, 0);
    TERRACE_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  }

  DType dtype() const { return dtype_; }
  std::int64_t qkv_stride() const {
    return (shape_.heads + 2 * shape_.key_value_heads) * shape_.head_width;
  }
  std::int64_t out_stride() const { return shape_.heads * shape_.head_width; }

  std::byte* query(std::byte* qkv, const Head& head, std::int64_t t) const {
    return at(qkv, head, t, head.h);
  }
  std::byte* key(std::byte* qkv, const Head& head, std::int64_t t) const {
    return at(qkv, head, t, shape_.heads + head.g);
  }
  std::byte* value(std::byte* qkv, const Head& head, std::int64_t t) const {
    return at(qkv, head, t, shape_.heads + shape_.key_value_heads + head.g);
  }
  std::byte* out(std::byte* out, const Head& head, std::int64_t t) const {
    const std::int64_t row = head.b * shape_.sequence + t;
    return out + (row * out_stride() + head.h * shape_.head_width) * bytes_;
  }
  float* statistic(float* log_sum_exp, const Head& head, std::int64_t t) const {
    return log_sum_exp + (head.b * shape_.heads + head.h) * shape_.sequence + t;
  }
  void check(const TensorView& qkv, const TensorView& out, const TensorView& log_sum_exp) const {
    const std::int64_t rows = shape_.batch * shape_.sequence;
    TERRACE_CHECK(qkv.dtype == dtype_ && out.dtype == dtype_);
    TERRACE_CHECK_EQ(qkv.elements(), rows * qkv_stride());
    TERRACE_CHECK_EQ(out.elements(), rows * out_stride());
    TERRACE_CHECK_EQ(log_sum_exp.elements(), rows * shape_.heads);
  }

 private:
  std::byte* at(std::byte* qkv, const Head& head, std::int64_t t, std::int64_t index) const {
    const std::int64_t row = head.b * shape_.sequence + t;
    return qkv + (row * qkv_stride() + index * shape_.head_width) * bytes_;
  }

  AttentionShape shape_;
  DType dtype_;
  std::int64_t bytes_;
};

// The matrix products of a block of Q queries and a panel of P keys.
class BlockProducts {
 public:
  BlockProducts(const AttentionShape& shape, const HeadRows& rows, std::int64_t queries,
                std::int64_t keys)
      : D_(shape.head_width), rows_(rows), Q_(queries), P_(keys) {}

  // [Q,P] = left [Q,D] right [P,D]^T, left rows being query or output rows.
  GemmShape scores(std::int64_t left_stride) const {
    GemmShape shape = product(Q_, P_, D_);
    shape.a_stride = left_stride;
    shape.b_stride = rows_.qkv_stride();
    shape.c_stride = kScoreStride;
    shape.b_transposed = true;
    return shape;
  }
  // [Q,D] += weights [Q,P] right [P,D].
  GemmShape mix() const {
    GemmShape shape = product(Q_, D_, P_);
    shape.a_stride = kScoreStride;
    shape.b_stride = rows_.qkv_stride();
    shape.c_stride = D_;
    shape.accumulate = true;
    return shape;
  }
  // [P,D] += weights [Q,P]^T right [Q,D].
  GemmShape spread(std::int64_t right_stride) const {
    GemmShape shape = product(P_, D_, Q_);
    shape.a_stride = kScoreStride;
    shape.b_stride = right_stride;
    shape.c_stride = D_;
    shape.a_transposed = true;
    shape.accumulate = true;
    return shape;
  }

 private:
  GemmShape product(std::int64_t m, std::int64_t n, std::int64_t k) const {
    GemmShape shape;
    shape.m = m;
    shape.n = n;
    shape.k = k;
    shape.input = rows_.dtype();
    return shape;
  }

  std::int64_t D_;
  const HeadRows& rows_;
  std::int64_t Q_, P_;
};

// The most scratch memory of oneDNN over all blocks and panels of a sequence.
std::size_t products_scratch(const AttentionShape& shape, const HeadRows& rows, bool backward) {
  std::size_t most = 0;
  const auto count = [&](std::int64_t queries, std::int64_t keys) {
    const BlockProducts products(shape, rows, queries, keys);
    most = std::max({most, block_gemm_scratch_bytes(products.scores(rows.qkv_stride())),
                     block_gemm_scratch_bytes(products.mix())});
    if (!backward) return;
    most = std::max({most, block_gemm_scratch_bytes(products.scores(rows.out_stride())),
                     block_gemm_scratch_bytes(products.spread(rows.qkv_stride())),
                     block_gemm_scratch_bytes(products.spread(rows.out_stride()))});
  };
  const std::int64_t sequence = shape.sequence;
  const std::int64_t last = sequence - (block_count(sequence) - 1) * kBlock;
  for (std::int64_t keys = kBlock; keys <= std::min(kPanel, sequence); keys += kBlock) {
    count(kBlock, keys);
  }
  count(last, std::min(kPanel, sequence));
  count(last, (sequence - 1) % kPanel + 1);
  return (most + 63) / 64 * 64;
}

// A worker's scratch memory: offsets in its share of the workspace. oneDNN's follows.
struct ForwardScratch {
  ForwardScratch(const AttentionShape& shape, DType dtype) {
    const auto D = static_cast<std::size_t>(shape.head_width);
    scores = layout.add(kScoreElements * sizeof(float));
    weights = dtype == DType::kF32 ? scores : layout.add(kScoreElements * size_of(dtype));
    output = layout.add(kBlock * D * sizeof(float));
    max = layout.add(kBlock * sizeof(float));
    sum = layout.add(kBlock * sizeof(float));
  }
  WorkspaceLayout layout;
  std::size_t scores = 0, weights = 0, output = 0, max = 0, sum = 0;
};

struct BackwardScratch {
  BackwardScratch(const AttentionShape& shape, DType dtype) {
    const auto D = static_cast<std::size_t>(shape.head_width);
    const auto T = static_cast<std::size_t>(shape.sequence);
    scores = layout.add(kScoreElements * sizeof(float));
    dweights = layout.add(kScoreElements * sizeof(float));
    const bool in_place = dtype == DType::kF32;
    weights = in_place ? scores : layout.add(kScoreElements * size_of(dtype));
    dscores = in_place ? dweights : layout.add(kScoreElements * size_of(dtype));
    delta = layout.add(kBlock * sizeof(float));
    dquery = layout.add(kBlock * D * sizeof(float));
    dkey = layout.add(T * D * sizeof(float));
    dvalue = layout.add(T * D * sizeof(float));
  }
  WorkspaceLayout layout;
  std::size_t scores = 0, dweights = 0, weights = 0, dscores = 0, delta = 0, dquery = 0, dkey = 0,
              dvalue = 0;
};

// Queries [first, first + count) of a head, and the keys of one panel, of which the block's last
// query sees all.
struct Block {
  Head head;
  std::int64_t first = 0, count = 0;
};
struct Panel {
  std::int64_t first = 0, count = 0;
};

// Calls body for the panels that the block's queries see, in order.
template <typename Body>
void for_each_panel(const Block& block, const Body& body) {
  const std::int64_t end = block.first + block.count;
  for (std::int64_t first = 0; first < end; first += kPanel) {
    body(Panel{first, std::min(kPanel, end - first)});
  }
}

ScoreBlock score_block(const Block& block, const Panel& panel, float* scores, float scale) {
  return {.scores = scores,
          .rows = block.count,
          .columns = panel.count,
          .stride = kScoreStride,
          .visible = block.first - panel.first + 1,
          .scale = scale};
}

class ForwardBlock {
 public:
  ForwardBlock(const AttentionForward& op, const HeadRows& rows, const Block& block,
               std::span<std::byte> share)
      : op_(op), rows_(rows), block_(block), share_(share), at_(op.shape, rows.dtype()) {}

  void run() {
    const std::int64_t D = op_.shape.head_width;
    float* output = region_at<float>(share_, at_.output, kBlock * D);
    float* max = region_at<float>(share_, at_.max, kBlock);
    float* sum = region_at<float>(share_, at_.sum, kBlock);
    std::fill_n(output, block_.count * D, 0.0F);
    std::fill_n(max, block_.count, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, block_.count, 0.0F);
    for_each_panel(block_, [&](const Panel& panel) { add_panel(panel); });
    softmax_finish(
        {.rows = block_.count,
         .width = D,
         .max = max,
         .sum = sum,
         .output = output,
         .target = rows_.out(op_.out.data, block_.head, block_.first),
         .dtype = rows_.dtype(),
         .target_stride = rows_.out_stride(),
         .log_sum_exp = rows_.statistic(op_.log_sum_exp.as<float>(), block_.head, block_.first)});
  }

 private:
  void add_panel(const Panel& panel) {
    const BlockProducts products(op_.shape, rows_, block_.count, panel.count);
    std::byte* scores = share_.data() + at_.scores;
    std::byte* weights = share_.data() + at_.weights;
    std::byte* output = share_.data() + at_.output;
    const auto scratch = share_.subspan(at_.layout.total_bytes());
    block_gemm(products.scores(rows_.qkv_stride()),
               {.a = rows_.query(op_.qkv.data, block_.head, block_.first),
                .b = rows_.key(op_.qkv.data, block_.head, panel.first),
                .c = scores,
                .scratch = scratch});
    softmax_step({.block = score_block(block_, panel, reinterpret_cast<float*>(scores), op_.scale),
                  .weights = weights,
                  .dtype = rows_.dtype(),
                  .max = region_at<float>(share_, at_.max, kBlock),
                  .sum = region_at<float>(share_, at_.sum, kBlock),
                  .output = reinterpret_cast<float*>(output),
                  .width = op_.shape.head_width});
    block_gemm(products.mix(), {.a = weights,
                                .b = rows_.value(op_.qkv.data, block_.head, panel.first),
                                .c = output,
                                .scratch = scratch});
  }

  const AttentionForward& op_;
  const HeadRows& rows_;
  Block block_;
  std::span<std::byte> share_;
  ForwardScratch at_;
};

// All gradients of one key-value head of one batch row. dkey and dvalue add up over the group's
// query heads, and for each over its blocks, in order.
class BackwardGroup {
 public:
  BackwardGroup(const AttentionBackward& op, const HeadRows& rows, std::span<std::byte> share)
      : op_(op), rows_(rows), share_(share), at_(op.shape, rows.dtype()) {}

  void run(std::int64_t b, std::int64_t g) {
    const auto& [B, T, H, G, D] = op_.shape;
    float* dkey = region_at<float>(share_, at_.dkey, T * D);
    float* dvalue = region_at<float>(share_, at_.dvalue, T * D);
    std::fill_n(dkey, T * D, 0.0F);
    std::fill_n(dvalue, T * D, 0.0F);
    Head head{b, 0, g};
    for (head.h = g * (H / G); head.h < (g + 1) * (H / G); ++head.h) {
      for (std::int64_t first = 0; first < T; first += kBlock) {
        add_block({head, first, std::min(kBlock, T - first)});
      }
    }
    round_to(T, dkey, rows_.key(op_.dqkv.data, head, 0));
    round_to(T, dvalue, rows_.value(op_.dqkv.data, head, 0));
  }

 private:
  void add_block(const Block& block) {
    const std::int64_t D = op_.shape.head_width;
    float* dquery = region_at<float>(share_, at_.dquery, kBlock * D);
    std::fill_n(dquery, block.count * D, 0.0F);
    row_dots({.rows = block.count,
              .width = D,
              .stride = rows_.out_stride(),
              .a = rows_.out(op_.dout.data, block.head, block.first),
              .b = rows_.out(op_.out.data, block.head, block.first),
              .dtype = rows_.dtype(),
              .sums = region_at<float>(share_, at_.delta, kBlock)});
    for_each_panel(block, [&](const Panel& panel) {
      recompute_weights(block, panel);
      add_panel(block, panel);
    });
    round_to(block.count, dquery, rows_.query(op_.dqkv.data, block.head, block.first));
  }

  void recompute_weights(const Block& block, const Panel& panel) {
    const BlockProducts products(op_.shape, rows_, block.count, panel.count);
    block_gemm(products.scores(rows_.qkv_stride()),
               {.a = rows_.query(op_.qkv.data, block.head, block.first),
                .b = rows_.key(op_.qkv.data, block.head, panel.first),
                .c = share_.data() + at_.scores,
                .scratch = scratch()});
    block_gemm(products.scores(rows_.out_stride()),
               {.a = rows_.out(op_.dout.data, block.head, block.first),
                .b = rows_.value(op_.qkv.data, block.head, panel.first),
                .c = share_.data() + at_.dweights,
                .scratch = scratch()});
    float* scores = region_at<float>(share_, at_.scores, kScoreElements);
    softmax_gradient(
        {.block = score_block(block, panel, scores, op_.scale),
         .dweights = region_at<float>(share_, at_.dweights, kScoreElements),
         .log_sum_exp = rows_.statistic(op_.log_sum_exp.as<float>(), block.head, block.first),
         .delta = region_at<float>(share_, at_.delta, kBlock),
         .weights = share_.data() + at_.weights,
         .dscores = share_.data() + at_.dscores,
         .dtype = rows_.dtype()});
  }

  void add_panel(const Block& block, const Panel& panel) {
    const BlockProducts products(op_.shape, rows_, block.count, panel.count);
    const std::int64_t offset =
        panel.first * op_.shape.head_width * static_cast<std::int64_t>(sizeof(float));
    std::byte* dscores = share_.data() + at_.dscores;
    block_gemm(products.spread(rows_.out_stride()),
               {.a = share_.data() + at_.weights,
                .b = rows_.out(op_.dout.data, block.head, block.first),
                .c = share_.data() + at_.dvalue + offset,
                .scratch = scratch()});
    block_gemm(products.spread(rows_.qkv_stride()),
               {.a = dscores,
                .b = rows_.query(op_.qkv.data, block.head, block.first),
                .c = share_.data() + at_.dkey + offset,
                .scratch = scratch()});
    block_gemm(products.mix(), {.a = dscores,
                                .b = rows_.key(op_.qkv.data, block.head, panel.first),
                                .c = share_.data() + at_.dquery,
                                .scratch = scratch()});
  }

  void round_to(std::int64_t count, const float* source, std::byte* target) const {
    round_rows({.rows = count,
                .width = op_.shape.head_width,
                .source = source,
                .target = target,
                .dtype = rows_.dtype(),
                .target_stride = rows_.qkv_stride()});
  }
  std::span<std::byte> scratch() const { return share_.subspan(at_.layout.total_bytes()); }

  const AttentionBackward& op_;
  const HeadRows& rows_;
  std::span<std::byte> share_;
  BackwardScratch at_;
};

}  // namespace

void cpu_attention_forward(const KernelContext& context, const AttentionForward& op) {
  const HeadRows rows(op.shape, op.qkv.dtype);
  rows.check(op.qkv, op.out, op.log_sum_exp);
  const auto& [B, T, H, G, D] = op.shape;
  const std::int64_t group = H / G;
  const std::int64_t blocks = block_count(T);
  context.workers->parallel_for(B * H * blocks, [&](std::int64_t task, int worker) {
    const std::int64_t h = task / blocks % H;
    // The last block of a head has the most keys: it comes first, so that workers end together.
    const std::int64_t first = (blocks - 1 - task % blocks) * kBlock;
    const Block block{{task / (blocks * H), h, h / group}, first, std::min(kBlock, T - first)};
    ForwardBlock(op, rows, block, worker_share(context, 0, worker)).run();
  });
}

void cpu_attention_backward(const KernelContext& context, const AttentionBackward& op) {
  const HeadRows rows(op.shape, op.qkv.dtype);
  rows.check(op.qkv, op.out, op.log_sum_exp);
  rows.check(op.dqkv, op.dout, op.log_sum_exp);
  const std::int64_t groups = op.shape.key_value_heads;
  context.workers->parallel_for(op.shape.batch * groups, [&](std::int64_t task, int worker) {
    BackwardGroup(op, rows, worker_share(context, 0, worker)).run(task / groups, task % groups);
  });
}

std::size_t cpu_attention_forward_workspace(const AttentionForward& op, int workers) {
  const HeadRows rows(op.shape, op.qkv.dtype);
  const ForwardScratch at(op.shape, op.qkv.dtype);
  return (at.layout.total_bytes() + products_scratch(op.shape, rows, false)) *
         static_cast<std::size_t>(workers);
}

std::size_t cpu_attention_backward_workspace(const AttentionBackward& op, int workers) {
  const HeadRows rows(op.shape, op.qkv.dtype);
  const BackwardScratch at(op.shape, op.qkv.dtype);
  return (at.layout.total_bytes() + products_scratch(op.shape, rows, true)) *
         static_cast<std::size_t>(workers);
}

}  // namespace terrace
