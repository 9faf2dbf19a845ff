#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "bench/kernel_cases.h"
#include "memory/host/streaming_copy.h"
#include "optim/stream_pass.h"
#include "runtime/model/rope_table.h"

namespace terrace {
namespace {

using ArrayAccess = StreamedArray::Access;

// The size of the pieces that a copy takes at once.
constexpr std::size_t kElementPieceBytes = std::size_t{1} << 20;

// A tensor, and how a kernel accesses its bytes.
struct StreamedTensor {
  TensorView tensor;
  ArrayAccess access = ArrayAccess::kRead;
};

// Returns loops over the tensors of a kernel that move its bytes and compute nothing.
std::vector<KernelLimit> loops_over(const KernelContext& context,
                                    std::initializer_list<StreamedTensor> streams) {
  // All tensors have the same number of rows, so an element of the narrowest one stands for some
  // bytes of the others.
  std::int64_t elements = streams.begin()->tensor.elements();
  for (const StreamedTensor& one : streams) elements = std::min(elements, one.tensor.elements());
  std::vector<StreamedArray> arrays;
  for (const StreamedTensor& one : streams) {
    arrays.push_back(
        {.data = one.tensor.data,
         .bytes_per_element = one.tensor.size_bytes() / static_cast<std::size_t>(elements),
         .access = one.access});
  }
  std::vector<KernelLimit> loops;
  for (const bool asks_ahead : {true, false}) {
    for (const bool past_cache : {true, false}) {
      const StreamForm form = {.asks_ahead = asks_ahead, .past_cache = past_cache};
      loops.push_back(
          {fmt::format("a loop that only streams the same bytes{}{}, all threads",
                       past_cache ? ", past the cache" : "", asks_ahead ? ", prefetching" : ""),
           [=] { stream_pass(context, arrays, elements, form); }});
    }
  }
  return loops;
}

// Returns copies, between memory of their own, that move the same number of bytes.
std::vector<KernelLimit> copies_of(const KernelSetting& setting, CaseMemory& memory, double bytes) {
  const std::size_t half = std::max<std::size_t>(64, static_cast<std::size_t>(bytes) / 2);
  const auto source = memory.bytes(half);
  const auto target = memory.bytes(half);
  WorkerArena& workers = *setting.workers;
  const auto in_pieces = [=, &workers](auto copy) {
    const auto pieces = static_cast<std::int64_t>(divide_up(half, kElementPieceBytes));
    workers.parallel_for(pieces, [&](std::int64_t piece, int) {
      const std::size_t at = static_cast<std::size_t>(piece) * kElementPieceBytes;
      const std::size_t size = std::min(kElementPieceBytes, half - at);
      copy(target.subspan(at, size), source.subspan(at, size));
    });
  };
  return {{"a streaming copy of the same number of bytes, all threads",
           [=] { in_pieces(streaming_copy); }},
          {"memcpy of the same number of bytes, all threads", [=] {
             in_pieces([](std::span<std::byte> to, std::span<const std::byte> from) {
               std::memcpy(to.data(), from.data(), to.size());
             });
           }}};
}

// Gives a case its memory, and on the CPU its limits.
KernelCase against_streams(const KernelSetting& setting, KernelCase result,
                           const std::shared_ptr<CaseMemory>& memory,
                           std::initializer_list<StreamedTensor> streams) {
  result.memory = memory;
  if (setting.device != nullptr) return result;
  result.limits = loops_over(memory->context(0), streams);
  for (KernelLimit& copy : copies_of(setting, *memory, result.bytes)) {
    result.limits.push_back(std::move(copy));
  }
  return result;
}

double bytes_of(std::initializer_list<TensorView> tensors) {
  double bytes = 0;
  for (const TensorView& tensor : tensors) bytes += static_cast<double>(tensor.size_bytes());
  return bytes;
}

// Returns the number of norms in a step: two in each block, one before the head.
int norms_of(const ModelConfig& model) { return static_cast<int>(2 * model.layers + 1); }

KernelCase norm_forward_case(const KernelSetting& setting) {
  auto memory = setting.make_memory();
  const std::int64_t rows = setting.batch.rows();
  const std::int64_t width = setting.model.width;
  const KernelContext context = memory->context(0);
  const KernelTable& kernels = setting.kernels();
  LayerNormForward op;
  op.x = memory->tensor(setting.type, rows, width);
  op.weight = memory->tensor(setting.type, width);
  op.bias = memory->tensor(setting.type, width);
  op.y = memory->tensor(setting.type, rows, width);
  op.mean = memory->tensor(DType::kF32, rows);
  op.rstd = memory->tensor(DType::kF32, rows);
  KernelCase result = {.bytes = bytes_of({op.x, op.y}), .per_step = norms_of(setting.model)};
  if (setting.model.norm.has_mean) {
    result.run = [&kernels, context, op] { kernels.layer_norm_forward(context, op); };
  } else {
    const RmsNormForward rms = {
        .x = whole_rows(op.x), .weight = op.weight, .y = whole_rows(op.y), .rstd = op.rstd};
    result.run = [&kernels, context, rms] { kernels.rms_norm_forward(context, rms); };
  }
  return against_streams(setting, std::move(result), memory, {{op.x}, {op.y, ArrayAccess::kWrite}});
}

KernelCase norm_backward_case(const KernelSetting& setting) {
  auto memory = setting.make_memory();
  const std::int64_t rows = setting.batch.rows();
  const std::int64_t width = setting.model.width;
  const KernelTable& kernels = setting.kernels();
  const KernelContext context =
      memory->context(kernels.norm_backward_workspace(rows, width, setting.worker_count()));
  LayerNormBackward op;
  op.dy = memory->tensor(setting.type, rows, width);
  op.x = memory->tensor(setting.type, rows, width);
  op.weight = memory->tensor(setting.type, width);
  op.mean = memory->tensor(DType::kF32, rows);
  op.rstd = memory->tensor(DType::kF32, rows);
  op.dresidual = memory->tensor(setting.type, rows, width);
  op.dx = memory->tensor(setting.type, rows, width);
  op.dweight = memory->tensor(DType::kF32, width);
  op.dbias = memory->tensor(DType::kF32, width);
  KernelCase result = {.bytes = bytes_of({op.dy, op.x, op.dresidual, op.dx}),
                       .per_step = norms_of(setting.model)};
  if (setting.model.norm.has_mean) {
    result.run = [&kernels, context, op] { kernels.layer_norm_backward(context, op); };
  } else {
    const RmsNormBackward rms = {.dy = whole_rows(op.dy),
                                 .x = whole_rows(op.x),
                                 .weight = op.weight,
                                 .rstd = op.rstd,
                                 .dresidual = whole_rows(op.dresidual),
                                 .dx = whole_rows(op.dx),
                                 .dweight = op.dweight};
    result.run = [&kernels, context, rms] { kernels.rms_norm_backward(context, rms); };
  }
  return against_streams(setting, std::move(result), memory,
                         {{op.dy}, {op.x}, {op.dresidual}, {op.dx, ArrayAccess::kWrite}});
}

KernelCase activation_case(const KernelSetting& setting, bool backward) {
  auto memory = setting.make_memory();
  const std::int64_t rows = setting.batch.rows();
  const KernelContext context = memory->context(0);
  const KernelTable& kernels = setting.kernels();
  const TensorView up = memory->tensor(setting.type, rows, setting.model.up_columns());
  const TensorView y = memory->tensor(setting.type, rows, setting.model.intermediate);
  const TensorView dup = memory->tensor(setting.type, rows, setting.model.up_columns());
  KernelCase result = {.bytes = backward ? bytes_of({up, y, dup}) : bytes_of({up, y}),
                       .per_step = static_cast<int>(setting.model.layers)};
  const bool gelu = setting.model.feed_forward == FeedForward::kGelu;
  result.run = [=, &kernels] {
    if (gelu && backward) return kernels.gelu_backward(context, {up, y, dup});
    if (gelu) return kernels.gelu_forward(context, {up, y});
    if (backward) return kernels.glu_backward(context, {up, y, dup});
    kernels.glu_forward(context, {up, y});
  };
  if (backward) {
    return against_streams(setting, std::move(result), memory,
                           {{up}, {y}, {dup, ArrayAccess::kWrite}});
  }
  return against_streams(setting, std::move(result), memory, {{up}, {y, ArrayAccess::kWrite}});
}

KernelCase add_case(const KernelSetting& setting) {
  auto memory = setting.make_memory();
  const KernelContext context = memory->context(0);
  const KernelTable& kernels = setting.kernels();
  const TensorView a = memory->tensor(setting.type, setting.batch.rows(), setting.model.width);
  const TensorView b = memory->tensor(setting.type, setting.batch.rows(), setting.model.width);
  KernelCase result = {.bytes = bytes_of({a, b, b}),
                       .per_step = static_cast<int>(2 * setting.model.layers)};
  result.run = [&kernels, context, a, b] { kernels.add(context, {a, b, b}); };
  return against_streams(setting, std::move(result), memory, {{a}, {b, ArrayAccess::kUpdate}});
}

KernelCase rope_case(const KernelSetting& setting) {
  auto memory = setting.make_memory();
  const ModelConfig& model = setting.model;
  const KernelContext context = memory->context(0);
  const KernelTable& kernels = setting.kernels();
  Rope op;
  const TensorView qkv = memory->tensor(setting.type, setting.batch.rows(), model.qkv_columns());
  op.heads = columns_of(qkv, 0, (model.heads + model.key_value_heads) * model.head_width);
  std::vector<float> table(static_cast<std::size_t>(setting.batch.positions * model.head_width));
  fill_rope_table(model.ropes.front(), setting.batch.positions, model.head_width, table);
  op.table = view(memory->holding(std::as_bytes(std::span(table))).data(), DType::kF32,
                  setting.batch.positions, model.head_width);
  op.sequence = setting.batch.positions;
  op.head_width = op.rotary_width = model.head_width;
  // Two calls in a block, forward and backward. Each reads and writes the heads that it turns.
  KernelCase result = {.bytes = 2.0 * static_cast<double>(op.heads.rows * op.heads.width) *
                                static_cast<double>(size_of(setting.type)),
                       .per_step = static_cast<int>(2 * model.layers)};
  result.run = [&kernels, context, op] { kernels.rope(context, op); };
  // Contiguous, with as many bytes as the heads have.
  const TensorView turned = view(op.heads.data, setting.type, op.heads.rows * op.heads.width);
  return against_streams(setting, std::move(result), memory, {{turned, ArrayAccess::kUpdate}});
}

// Makes a case of a product of few rows with a weight, as in sampling: its work is to read the
// weight.
KernelCase few_rows_case(const KernelSetting& setting, std::int64_t rows, std::int64_t outputs) {
  auto memory = setting.make_memory();
  const KernelTable& kernels = setting.kernels();
  MatmulForward op;
  op.x = memory->tensor(setting.type, rows, setting.model.width);
  op.weight = memory->tensor(setting.type, outputs, setting.model.width);
  op.y = memory->tensor(setting.type, rows, outputs);
  const KernelContext context =
      memory->context(kernels.matmul_forward_workspace(op, setting.worker_count()));
  KernelCase result = {.bytes = bytes_of({op.weight})};
  result.run = [&kernels, context, op] { kernels.matmul_forward(context, op); };
  return against_streams(setting, std::move(result), memory, {{op.weight}});
}

void add_few_rows(const KernelSetting& setting, std::vector<KernelCaseMaker>& makers) {
  const auto add = [&](const char* name, std::int64_t rows, std::int64_t outputs) {
    makers.push_back(
        {name, [&setting, rows, outputs] { return few_rows_case(setting, rows, outputs); }});
  };
  const ModelConfig& model = setting.model;
  add("matmul_up_one_row", 1, model.up_columns());
  add("matmul_head_one_row", 1, model.vocabulary);
  add("matmul_head_eight_rows", 8, model.vocabulary);
}

}  // namespace

std::vector<KernelCaseMaker> element_cases(const KernelSetting& setting) {
  std::vector<KernelCaseMaker> makers = {
      {"norm_forward", [&setting] { return norm_forward_case(setting); }},
      {"norm_backward", [&setting] { return norm_backward_case(setting); }},
      {"activation_forward", [&setting] { return activation_case(setting, false); }},
      {"activation_backward", [&setting] { return activation_case(setting, true); }},
      {"add", [&setting] { return add_case(setting); }}};
  if (!setting.model.ropes.empty()) {
    makers.push_back({"rope", [&setting] { return rope_case(setting); }});
  }
  if (setting.device == nullptr) add_few_rows(setting, makers);
  return makers;
}

}  // namespace terrace
