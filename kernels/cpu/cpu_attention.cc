#include "kernels/cpu/cpu_attention.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/attention_heads.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/cpu_softmax.h"
#include "kernels/cpu/cpu_workspace.h"
#include "kernels/cpu/few_queries.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/parallel_blocks.h"

// Letters: B batch, H query heads, G key-value heads, D head width.
namespace terrace {
namespace {

// Queries of a block. The fp32 scores of a strip of it and a panel of keys are 64 KiB; in the
// backward the weights and score gradients of a block and a panel, 128 KiB each in bf16, stay in a
// second-level cache beside them. Both sizes are fixed, because another size would change the order
// of sums. A panel is whole blocks, so that no query has a panel without visible keys.
constexpr std::int64_t kBlock = 128;
static_assert(kPanel % kBlock == 0 && kBlock % kStrip == 0);
// A head's queries are split among tasks until there are kTasksMin tasks, as long as each task then
// has at least kPartQueriesMin queries.
constexpr std::int64_t kTasksMin = 64;
constexpr std::int64_t kPartQueriesMin = 512;

std::size_t to_size(std::int64_t count) { return static_cast<std::size_t>(count); }

// Returns the elements of a strip of queries by the keys of a panel; a short sequence has fewer
// keys than a panel.
std::int64_t panel_elements(const AttentionShape& shape) {
  return std::min(kPanel, strips_of(shape.keys) * kStrip) * kStrip;
}

// Returns the operations of one product of all queries with the keys that they see; documents are
// not taken into account.
double product_flops(const AttentionShape& shape, const AttentionRule& rule) {
  std::int64_t twice_seen = 2 * shape.keys - shape.queries;  // on average, by a query
  if (rule.window > 0) twice_seen = std::min(twice_seen, 2 * rule.window);
  return static_cast<double>(shape.batch * shape.heads) * static_cast<double>(shape.queries) *
         static_cast<double>(twice_seen) * static_cast<double>(shape.head_width);
}
constexpr double kForwardProducts = 2;
constexpr double kBackwardProducts = 5;

// A strip of queries from the `first`-th position on, and keys [key, end).
struct StripPlace {
  std::int64_t first = 0, count = 0, key = 0, end = 0;
  const std::int64_t* first_keys = nullptr;  // of the queries
};

ScoreStrip score_strip(float* scores, const AttentionRule& rule, const StripPlace& place) {
  return {.scores = scores,
          .rows = place.count,
          .columns = std::min(kPanel, place.end - place.key),
          .visible = place.first - place.key + 1,
          .scale = rule.scale,
          .soft_cap = rule.soft_cap,
          .first_keys = place.first_keys,
          .key = place.key};
}

// Offsets in the workspace of the forward: first the memory that all workers share, then each
// worker's own.
struct ForwardPlan {
  explicit ForwardPlan(const AttentionForward& op)
      : code(strip_code(op.q.dtype)),
        parts{PackedPart{{op.shape, PackedHeads::Columns::kKeys, code}, op.k},
              PackedPart{{op.shape, PackedHeads::Columns::kWidth, code}, op.v}},
        blocks(blocks_of(op.shape.queries, kBlock)),
        panel_elements(terrace::panel_elements(op.shape)) {
    for (PackedPart& part : parts) part.offset = shared.add(to_size(part.heads.bytes()));
    const std::int64_t D = op.shape.head_width;
    query = own.add(to_size(code.bytes(strip_elements(D))));
    scores = own.add(to_size(panel_elements) * sizeof(float));
    weights = own.add(to_size(code.bytes(panel_elements)));
    output = own.add(to_size(strip_elements(D)) * sizeof(float));
    max = own.add(kStrip * sizeof(float));
    sum = own.add(kStrip * sizeof(float));
  }
  std::int64_t tasks(const AttentionShape& shape) const {
    return shape.batch * shape.heads * blocks;
  }
  template <typename Op>
  int workers_of(int workers, const Op& op) const {
    return fed_workers(workers, tasks(op.shape),
                       kForwardProducts * product_flops(op.shape, op.rule));
  }

  const StripCode& code;
  PackedPart parts[2];
  std::int64_t blocks;          // of the queries of a head
  std::int64_t panel_elements;  // of a strip of queries and a panel
  WorkspaceLayout shared, own;
  std::size_t query = 0, scores = 0, weights = 0, output = 0, max = 0, sum = 0;
};

// A strip of queries of one head.
class ForwardStrip {
 public:
  ForwardStrip(const AttentionForward& op, const HeadRows& rows, const ForwardPlan& plan,
               std::byte* shared, std::span<std::byte> own)
      : op_(op),
        rows_(rows),
        plan_(plan),
        code_(plan.code),
        shared_(shared),
        own_(own),
        first_keys_(op.shape, op.rule) {}

  void run(const Head& head, std::int64_t first, std::int64_t count) {
    const std::int64_t D = op_.shape.head_width;
    step_.packed = code_.packed;
    step_.weights = own_.data() + plan_.weights;
    step_.max = region_at<float>(own_, plan_.max, kStrip);
    step_.sum = region_at<float>(own_, plan_.sum, kStrip);
    step_.output = region_at<float>(own_, plan_.output, strip_elements(D));
    step_.width = D;
    begin_softmax(head);
    code_.pack_left({.source = rows_.query(op_.q, head, first),
                     .type = rows_.dtype(),
                     .stride = op_.q.stride,
                     .width = count,
                     .depth = D,
                     .depth_contiguous = true,
                     .target = own_.data() + plan_.query});
    first_keys_.look(head.b, first, count);
    const std::int64_t position = op_.shape.keys - op_.shape.queries + first;
    const std::int64_t begin = first_keys_.first() / kStrip * kStrip;
    for (std::int64_t key = begin; key < position + count; key += kPanel) {
      step_.first = key == begin;
      add_panel(head, {.first = position,
                       .count = count,
                       .key = key,
                       .end = position + count,
                       .first_keys = first_keys_.from(0, key)});
    }
    softmax_finish(step_,
                   {.data = rows_.out(op_.out.data, head, first),
                    .dtype = rows_.dtype(),
                    .rows = count,
                    .width = D,
                    .stride = rows_.out_stride()},
                   rows_.statistic(op_.log_sum_exp.as<float>(), head, first));
  }

 private:
  // A sink is like a key that comes before all others and has no value.
  void begin_softmax(const Head& head) {
    const bool has_sink = !op_.rule.sinks.empty();
    const float lowest = -std::numeric_limits<float>::infinity();
    std::fill_n(step_.max, kStrip, has_sink ? number_at(op_.rule.sinks, head.h) : lowest);
    std::fill_n(step_.sum, kStrip, has_sink ? 1.0F : 0.0F);
  }

  void add_panel(const Head& head, const StripPlace& place) {
    const std::int64_t D = op_.shape.head_width;
    float* scores = region_at<float>(own_, plan_.scores, plan_.panel_elements);
    step_.strip = score_strip(scores, op_.rule, place);
    const auto& [keys, values] = plan_.parts;
    code_.multiply({.left = own_.data() + plan_.query,
                    .right = keys.heads.from(shared_ + keys.offset, head, place.key),
                    .left_strips = 1,
                    .right_strips = step_.strip.squares(),
                    .depth = D,
                    .right_stride = keys.heads.stride(),
                    .tiles = scores});
    softmax_strip(step_);
    code_.multiply({.left = step_.weights,
                    .right = values.heads.from(shared_ + values.offset, head, place.key),
                    .left_strips = 1,
                    .right_strips = strips_of(D),
                    .depth = step_.strip.squares() * kStrip,
                    .right_stride = values.heads.stride(),
                    .accumulate = !step_.first,
                    .tiles = step_.output});
  }

  const AttentionForward& op_;
  const HeadRows& rows_;
  const ForwardPlan& plan_;
  const StripCode& code_;
  std::byte* shared_;
  std::span<std::byte> own_;
  FirstKeys first_keys_;
  SoftmaxStrip step_;
};

// Returns the number of parts that the queries of a head are cut into. With n parts, a part has
// every n-th block, so that parts cost the same.
std::int64_t query_parts(const AttentionShape& shape) {
  std::int64_t parts = 1;
  while (shape.batch * shape.heads * parts < kTasksMin &&
         shape.queries >= 2 * parts * kPartQueriesMin) {
    parts *= 2;
  }
  return parts;
}

struct BackwardPlan {
  explicit BackwardPlan(const AttentionBackward& op)
      : code(strip_code(op.q.dtype)),
        parts{PackedPart{{op.shape, PackedHeads::Columns::kKeys, code}, op.k},
              PackedPart{{op.shape, PackedHeads::Columns::kKeys, code}, op.v},
              PackedPart{{op.shape, PackedHeads::Columns::kWidth, code}, op.k}},
        query_parts(terrace::query_parts(op.shape)),
        sums(query_parts * (op.shape.heads / op.shape.key_value_heads)),
        width_strips(strips_of(op.shape.head_width)),
        panel_elements(terrace::panel_elements(op.shape)),
        key_elements(strips_of(op.shape.keys) * width_strips * kStepElements) {
    for (PackedPart& part : parts) part.offset = shared.add(to_size(part.heads.bytes()));
    const std::int64_t D = op.shape.head_width;
    const std::size_t key_bytes = to_size(key_elements) * sizeof(float);
    if (sums > 1) partials = shared.add(2 * key_bytes * to_size(tasks(op.shape)));
    const std::size_t rows_bytes = to_size(code.bytes(kBlock / kStrip * strip_elements(D)));
    const std::size_t columns_bytes = to_size(code.bytes(width_strips * strip_elements(kBlock)));
    const std::size_t right_bytes = to_size(code.bytes(panel_elements / kStrip * kBlock));
    for (std::size_t& at : rows) at = own.add(rows_bytes);
    for (std::size_t& at : columns) at = own.add(columns_bytes);
    scores = own.add(to_size(panel_elements) * sizeof(float));
    dweights = own.add(to_size(panel_elements) * sizeof(float));
    weights = own.add(right_bytes);
    dscores = own.add(right_bytes);
    dscores_left = own.add(to_size(code.bytes(panel_elements)));
    delta = own.add(kBlock * sizeof(float));
    dquery = own.add(kBlock / kStrip * to_size(strip_elements(D)) * sizeof(float));
    if (sums > 1) return;
    dkey = own.add(key_bytes);
    dvalue = own.add(key_bytes);
  }

  std::int64_t tasks(const AttentionShape& shape) const {
    return shape.batch * shape.heads * query_parts;
  }
  template <typename Op>
  int workers_of(int workers, const Op& op) const {
    return fed_workers(workers, tasks(op.shape),
                       kBackwardProducts * product_flops(op.shape, op.rule));
  }

  const StripCode& code;
  PackedPart parts[3];       // keys and values by key, keys by width
  std::int64_t query_parts;  // of a head
  std::int64_t sums;         // tasks that add to the gradients of a key-value head
  std::int64_t width_strips;
  std::int64_t panel_elements;  // of a strip of queries and a panel of keys
  std::int64_t key_elements;    // of the gradients of a head's keys, or of its values
  WorkspaceLayout shared, own;
  // The two left operands of a block of queries, query and dout: packed by row, and by column.
  std::size_t rows[2] = {}, columns[2] = {};
  std::size_t scores = 0, dweights = 0, weights = 0, dscores = 0, dscores_left = 0, delta = 0,
              dquery = 0;
  // Transposed gradients of keys and values, as squares: each strip of keys has the squares of its
  // whole width.
  std::size_t dkey = 0, dvalue = 0, partials = 0;
};

// The backward of some blocks of the queries of one head. It computes the gradients of those
// queries and their share of the gradients of the head's keys and values, over blocks in order.
class BackwardPart {
 public:
  BackwardPart(const AttentionBackward& op, const HeadRows& rows, const BackwardPlan& plan,
               std::byte* shared, std::span<std::byte> own)
      : op_(op),
        rows_(rows),
        plan_(plan),
        code_(plan.code),
        shared_(shared),
        own_(own),
        first_keys_(op.shape, op.rule) {}

  // Writes squares to dkey and dvalue, key_elements to each.
  void run(const Head& head, std::int64_t part, float* dkey, float* dvalue) {
    head_ = head;
    dkey_ = dkey;
    dvalue_ = dvalue;
    std::fill_n(dkey, plan_.key_elements, 0.0F);
    std::fill_n(dvalue, plan_.key_elements, 0.0F);
    const std::int64_t T = op_.shape.queries;
    for (std::int64_t first = part * kBlock; first < T; first += plan_.query_parts * kBlock) {
      first_ = first;
      count_ = std::min(kBlock, T - first);
      add_block();
    }
  }

 private:
  enum Operand : std::size_t { kQuery, kDout };

  void add_block() {
    const std::int64_t D = op_.shape.head_width;
    pack_block(kQuery, rows_.query(op_.q, head_, first_), op_.q.stride);
    pack_block(kDout, rows_.out(op_.dout.data, head_, first_), rows_.out_stride());
    row_dots({.rows = count_,
              .width = D,
              .stride = rows_.out_stride(),
              .a = rows_.out(op_.dout.data, head_, first_),
              .b = rows_.out(op_.out.data, head_, first_),
              .dtype = rows_.dtype(),
              .sums = region_at<float>(own_, plan_.delta, kBlock)});
    first_keys_.look(head_.b, first_, count_);
    begin_ = first_keys_.first() / kBlock * kBlock;
    for (std::int64_t key = begin_; key < first_ + count_; key += kPanel) {
      for (std::int64_t strip = 0; strip < strips_of(count_); ++strip) add_strip(strip, key);
      add_keys(key);
    }
    for (std::int64_t strip = 0; strip < strips_of(count_); ++strip) {
      round_rows(dquery(strip), {.data = rows_.query(op_.dq, head_, query_of(strip)),
                                 .dtype = rows_.dtype(),
                                 .rows = queries_of(strip),
                                 .width = D,
                                 .stride = op_.dq.stride});
    }
  }

  void pack_block(Operand operand, const std::byte* source, std::int64_t stride) {
    const std::int64_t D = op_.shape.head_width;
    const auto bytes = static_cast<std::int64_t>(size_of(rows_.dtype()));
    PackStrip strip = {.source = source, .type = rows_.dtype(), .stride = stride};
    strip.depth = D;
    strip.depth_contiguous = true;
    strip.target = own_.data() + plan_.rows[operand];
    for (std::int64_t row = 0; row < count_; row += kStrip) {
      strip.source = source + row * stride * bytes;
      strip.width = std::min(kStrip, count_ - row);
      code_.pack_left(strip);
      strip.target += code_.bytes(strip_elements(D));
    }
    strip.depth = count_;
    strip.depth_contiguous = false;
    strip.target = own_.data() + plan_.columns[operand];
    for (std::int64_t column = 0; column < D; column += kStrip) {
      strip.source = source + column * bytes;
      strip.width = std::min(kStrip, D - column);
      code_.pack_left(strip);
      strip.target += code_.bytes(strip_elements(kBlock));
    }
  }

  // Computes the weights and score gradients of a strip of queries and a panel of keys, and adds
  // the keys' share to the gradient of the queries.
  void add_strip(std::int64_t strip, std::int64_t key) {
    float* scores = region_at<float>(own_, plan_.scores, plan_.panel_elements);
    float* dweights = region_at<float>(own_, plan_.dweights, plan_.panel_elements);
    const float* delta = region_at<float>(own_, plan_.delta, kBlock);
    const std::int64_t right = code_.bytes(strip * kStepElements);
    GradientStrip gradient;
    gradient.strip = score_strip(scores, op_.rule,
                                 {.first = query_of(strip),
                                  .count = queries_of(strip),
                                  .key = key,
                                  .end = first_ + count_,
                                  .first_keys = first_keys_.from(strip * kStrip, key)});
    gradient.dweights = dweights;
    gradient.log_sum_exp = rows_.statistic(op_.log_sum_exp.as<float>(), head_, query_of(strip));
    gradient.delta = delta + strip * kStrip;
    gradient.packed = code_.packed;
    gradient.weights = own_.data() + plan_.weights + right;
    gradient.dscores = own_.data() + plan_.dscores + right;
    gradient.dscores_left = own_.data() + plan_.dscores_left;
    gradient.right_stride = strip_elements(kBlock);
    const std::int64_t squares = gradient.strip.squares();
    const auto& [keys, values, keys_by_width] = plan_.parts;
    const SquareRow row = {strip, key, squares};
    multiply_row(kQuery, keys, row, scores);
    multiply_row(kDout, values, row, dweights);
    softmax_gradient(gradient);
    code_.multiply({.left = gradient.dscores_left,
                    .right = keys_by_width.heads.from(shared_ + keys_by_width.offset, head_, key),
                    .left_strips = 1,
                    .right_strips = plan_.width_strips,
                    .depth = squares * kStrip,
                    .right_stride = keys_by_width.heads.stride(),
                    .accumulate = key > begin_,
                    .tiles = dquery(strip)});
  }

  // Squares of scores that lie side by side: a strip of queries, and keys from `key` on.
  struct SquareRow {
    std::int64_t strip, key, squares;
  };
  void multiply_row(Operand operand, const PackedPart& keys, const SquareRow& row, float* tiles) {
    const std::int64_t D = op_.shape.head_width;
    code_.multiply(
        {.left = own_.data() + plan_.rows[operand] + code_.bytes(row.strip * strip_elements(D)),
         .right = keys.heads.from(shared_ + keys.offset, head_, row.key),
         .left_strips = 1,
         .right_strips = row.squares,
         .depth = D,
         .right_stride = keys.heads.stride(),
         .tiles = tiles});
  }

  // Adds the block's share to the gradients of a panel's keys and values. Keys before the block are
  // seen by all strips of the block; a strip of keys in the block is seen by the strips from it on.
  void add_keys(std::int64_t key) {
    const std::int64_t strips = strips_of(std::min(kPanel, first_ + count_ - key));
    const std::int64_t before = std::clamp<std::int64_t>((first_ - key) / kStrip, 0, strips);
    if (before > 0) add_key_strips(key / kStrip, 0, before, 0);
    for (std::int64_t strip = before; strip < strips; ++strip) {
      add_key_strips(key / kStrip, strip, 1, strip - before);
    }
  }

  // Adds to strips [strip, strip + count) of the panel, which are seen by strips of queries from
  // `query` on.
  void add_key_strips(std::int64_t panel_strip, std::int64_t strip, std::int64_t count,
                      std::int64_t query) {
    const std::int64_t right = strip * strip_elements(kBlock) + query * kStepElements;
    PackedProduct product;
    product.left_strips = plan_.width_strips;
    product.right_strips = count;
    product.depth = (strips_of(count_) - query) * kStrip;
    product.left_stride = strip_elements(kBlock);
    product.right_stride = strip_elements(kBlock);
    product.accumulate = true;
    const std::int64_t tiles = (panel_strip + strip) * plan_.width_strips * kStepElements;
    const auto add = [&](Operand operand, std::size_t from, float* sums) {
      product.left = own_.data() + plan_.columns[operand] + code_.bytes(query * kStepElements);
      product.right = own_.data() + from + code_.bytes(right);
      product.tiles = sums + tiles;
      code_.multiply(product);
    };
    add(kDout, plan_.weights, dvalue_);
    add(kQuery, plan_.dscores, dkey_);
  }

  std::int64_t query_of(std::int64_t strip) const { return first_ + strip * kStrip; }
  std::int64_t queries_of(std::int64_t strip) const {
    return std::min(kStrip, count_ - strip * kStrip);
  }
  float* dquery(std::int64_t strip) const {
    const std::int64_t elements = strip_elements(op_.shape.head_width);
    return region_at<float>(own_, plan_.dquery, kBlock / kStrip * elements) + strip * elements;
  }

  const AttentionBackward& op_;
  const HeadRows& rows_;
  const BackwardPlan& plan_;
  const StripCode& code_;
  std::byte* shared_;
  std::span<std::byte> own_;
  FirstKeys first_keys_;
  Head head_;
  std::int64_t first_ = 0, count_ = 0;  // the block's queries
  std::int64_t begin_ = 0;              // the first key of its panels
  float* dkey_ = nullptr;
  float* dvalue_ = nullptr;
};

class BackwardRun {
 public:
  BackwardRun(const KernelContext& context, const AttentionBackward& op)
      : context_(context), op_(op), rows_(op.shape, op.q.dtype), plan_(op) {
    TERRACE_CHECK_EQ(op.shape.queries, op.shape.keys);
    rows_.check(op.q, op.k, op.v);
    rows_.check(op.dq, op.dk, op.dv);
    rows_.check(op.out, op.log_sum_exp);
    rows_.check(op.dout, op.log_sum_exp);
  }

  void run() {
    const std::int64_t H = op_.shape.heads;
    const std::int64_t tasks = plan_.tasks(op_.shape);
    const int workers = plan_.workers_of(context_.workers->threads(), op_);
    pack_all(context_, rows_, op_.shape, plan_.parts);
    context_.workers->parallel_for(tasks, workers, [&](std::int64_t task, int worker) {
      const std::int64_t index = task / plan_.query_parts;
      const Head head{index / H, index % H, index % H / (H / op_.shape.key_value_heads)};
      const auto own = worker_share(context_, plan_.shared.total_bytes(), workers, worker);
      float* dkey = partial(task, 0);
      float* dvalue = partial(task, 1);
      if (plan_.sums == 1) {
        dkey = region_at<float>(own, plan_.dkey, plan_.key_elements);
        dvalue = region_at<float>(own, plan_.dvalue, plan_.key_elements);
      }
      BackwardPart(op_, rows_, plan_, context_.workspace.data(), own)
          .run(head, task % plan_.query_parts, dkey, dvalue);
      if (plan_.sums > 1) return;
      for (std::int64_t strip = 0; strip < strips_of(op_.shape.keys); ++strip) {
        round_keys(head, strip, dkey + strip * strip_squares(), dvalue + strip * strip_squares());
      }
    });
    if (plan_.sums > 1) add_partials();
  }

 private:
  // Returns where a task keeps its share of the gradient of a head's keys (0) or values (1), or
  // null if no other task adds to that gradient.
  float* partial(std::int64_t task, std::int64_t which) const {
    if (plan_.sums == 1) return nullptr;
    const std::int64_t first = (2 * task + which) * plan_.key_elements;
    return reinterpret_cast<float*>(context_.workspace.data() + plan_.partials) + first;
  }
  std::int64_t strip_squares() const { return plan_.width_strips * kStepElements; }

  // Adds the tasks' shares. The tasks of a key-value head follow each other: query head by query
  // head, and within each part by part.
  void add_partials() {
    const std::int64_t G = op_.shape.key_value_heads;
    const std::int64_t strips = strips_of(op_.shape.keys);
    context_.workers->parallel_for(op_.shape.batch * G * strips, [&](std::int64_t index, int) {
      const std::int64_t group = index / strips;
      const std::int64_t at = index % strips * strip_squares();
      const std::int64_t first = group * plan_.sums;
      for (std::int64_t task = first + 1; task < first + plan_.sums; ++task) {
        for (const std::int64_t which : {0, 1}) {
          add_row(partial(task, which) + at, strip_squares(), partial(first, which) + at);
        }
      }
      round_keys({group / G, 0, group % G}, index % strips, partial(first, 0) + at,
                 partial(first, 1) + at);
    });
  }

  void round_keys(const Head& head, std::int64_t strip, const float* dkey,
                  const float* dvalue) const {
    const std::int64_t first = strip * kStrip;
    StripRows target = {.data = rows_.key(op_.dk, head, first),
                        .dtype = rows_.dtype(),
                        .rows = std::min(kStrip, op_.shape.keys - first),
                        .width = op_.shape.head_width,
                        .stride = op_.dk.stride};
    round_columns(dkey, target);
    target.data = rows_.key(op_.dv, head, first);
    target.stride = op_.dv.stride;
    round_columns(dvalue, target);
  }

  const KernelContext& context_;
  const AttentionBackward& op_;
  HeadRows rows_;
  BackwardPlan plan_;
};

}  // namespace

void cpu_attention_forward(const KernelContext& context, const AttentionForward& op) {
  if (is_of_few_queries(op.shape)) return few_queries_attention(context, op);
  const HeadRows rows(op.shape, op.q.dtype);
  rows.check(op.q, op.k, op.v);
  rows.check(op.out, op.log_sum_exp);
  rows.check_sinks(op.rule.sinks);
  const ForwardPlan plan(op);
  pack_all(context, rows, op.shape, plan.parts);
  const std::int64_t Q = op.shape.queries;
  const std::int64_t H = op.shape.heads;
  const std::int64_t blocks = plan.blocks;
  const int workers = plan.workers_of(context.workers->threads(), op);
  context.workers->parallel_for(plan.tasks(op.shape), workers, [&](std::int64_t task, int worker) {
    const std::int64_t h = task / blocks % H;
    const Head head{task / (blocks * H), h, h / (H / op.shape.key_value_heads)};
    // The last block of a head has the most keys, so it is computed first: workers then end
    // together.
    const std::int64_t first = (blocks - 1 - task % blocks) * kBlock;
    const std::int64_t end = std::min(first + kBlock, Q);
    ForwardStrip strip(op, rows, plan, context.workspace.data(),
                       worker_share(context, plan.shared.total_bytes(), workers, worker));
    for (std::int64_t t = first; t < end; t += kStrip) {
      strip.run(head, t, std::min(kStrip, end - t));
    }
  });
}

void cpu_attention_backward(const KernelContext& context, const AttentionBackward& op) {
  BackwardRun(context, op).run();
}

std::size_t cpu_attention_forward_workspace(const AttentionForward& op, int workers) {
  if (is_of_few_queries(op.shape)) return few_queries_workspace(op, workers);
  const ForwardPlan plan(op);
  const int fed = plan.workers_of(workers, op);
  return plan.shared.total_bytes() + plan.own.total_bytes() * to_size(fed);
}

std::size_t cpu_attention_backward_workspace(const AttentionBackward& op, int workers) {
  const BackwardPlan plan(op);
  const int fed = plan.workers_of(workers, op);
  return plan.shared.total_bytes() + plan.own.total_bytes() * to_size(fed);
}

}  // namespace terrace
