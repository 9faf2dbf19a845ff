#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/kernel_cases.h"
#include "bench/product_limits.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/head_chunk.h"

namespace terrace {
namespace {

// A product y = x weight^T of a block, with its numbers of columns out and in.
struct Linear {
  const char* name;
  std::int64_t outputs, inputs;
  bool bias;
};

std::vector<Linear> linears_of(const ModelConfig& model) {
  const std::int64_t mixed = model.heads * model.head_width;
  return {{"qkv", model.qkv_columns(), model.width, model.has_qkv_bias},
          {"projection", model.width, mixed, model.has_projection_bias},
          {"up", model.up_columns(), model.width, model.has_feed_forward_bias},
          {"down", model.width, model.intermediate, model.has_feed_forward_bias}};
}

// Gives a case on the CPU its limits.
KernelCase against_onednn(const KernelSetting& setting, KernelCase result,
                          const std::shared_ptr<CaseMemory>& memory, const MatrixProduct& product,
                          decltype(onednn_limits)& limits_of) {
  result.memory = memory;
  if (setting.device != nullptr) return result;
  result.limits = limits_of(memory, product, setting.worker_count());
  return result;
}

KernelCase forward_case(const KernelSetting& setting, const Linear& linear) {
  auto memory = setting.make_memory();
  const int workers = setting.worker_count();
  const std::int64_t rows = setting.batch.rows();
  MatmulForward op;
  op.x = memory->tensor(setting.type, rows, linear.inputs);
  op.weight = memory->tensor(setting.type, linear.outputs, linear.inputs);
  if (linear.bias) op.bias = memory->tensor(setting.type, linear.outputs);
  op.y = memory->tensor(setting.type, rows, linear.outputs);
  const KernelTable& kernels = setting.kernels();
  const KernelContext context = memory->context(kernels.matmul_forward_workspace(op, workers));
  const MatrixProduct product = {.shape = {.m = rows,
                                           .n = linear.outputs,
                                           .k = linear.inputs,
                                           .a_stride = linear.inputs,
                                           .b_stride = linear.inputs,
                                           .c_stride = linear.outputs,
                                           .input = setting.type,
                                           .output = setting.type,
                                           .b_transposed = true},
                                 .a = op.x.data,
                                 .b = op.weight.data,
                                 .c = op.y.data};
  KernelCase result = {.flops = 2.0 * static_cast<double>(rows * linear.outputs * linear.inputs),
                       .per_step = static_cast<int>(setting.model.layers),
                       .run = [&kernels, context, op] { kernels.matmul_forward(context, op); }};
  return against_onednn(setting, std::move(result), memory, product, onednn_weight_limits);
}

KernelCase input_case(const KernelSetting& setting, const Linear& linear) {
  auto memory = setting.make_memory();
  const int workers = setting.worker_count();
  const std::int64_t rows = setting.batch.rows();
  MatmulBackwardInput op;
  op.dy = memory->tensor(setting.type, rows, linear.outputs);
  op.weight = memory->tensor(setting.type, linear.outputs, linear.inputs);
  op.dx = memory->tensor(setting.type, rows, linear.inputs);
  const KernelTable& kernels = setting.kernels();
  const KernelContext context =
      memory->context(kernels.matmul_backward_input_workspace(op, workers));
  const MatrixProduct product = {.shape = {.m = rows,
                                           .n = linear.inputs,
                                           .k = linear.outputs,
                                           .a_stride = linear.outputs,
                                           .b_stride = linear.inputs,
                                           .c_stride = linear.inputs,
                                           .input = setting.type,
                                           .output = setting.type},
                                 .a = op.dy.data,
                                 .b = op.weight.data,
                                 .c = op.dx.data};
  KernelCase result = {
      .flops = 2.0 * static_cast<double>(rows * linear.outputs * linear.inputs),
      .per_step = static_cast<int>(setting.model.layers),
      .run = [&kernels, context, op] { kernels.matmul_backward_input(context, op); }};
  return against_onednn(setting, std::move(result), memory, product, onednn_weight_limits);
}

KernelCase weight_case(const KernelSetting& setting, const Linear& linear) {
  auto memory = setting.make_memory();
  const int workers = setting.worker_count();
  const std::int64_t rows = setting.batch.rows();
  MatmulBackwardWeight op;
  op.dy = memory->tensor(setting.type, rows, linear.outputs);
  op.x = memory->tensor(setting.type, rows, linear.inputs);
  op.dweight = memory->tensor(DType::kF32, linear.outputs, linear.inputs);
  if (linear.bias) op.dbias = memory->tensor(DType::kF32, linear.outputs);
  const KernelTable& kernels = setting.kernels();
  const KernelContext context =
      memory->context(kernels.matmul_backward_weight_workspace(op, workers));
  const MatrixProduct product = {.shape = {.m = linear.outputs,
                                           .n = linear.inputs,
                                           .k = rows,
                                           .a_stride = linear.outputs,
                                           .b_stride = linear.inputs,
                                           .c_stride = linear.inputs,
                                           .input = setting.type,
                                           .a_transposed = true},
                                 .a = op.dy.data,
                                 .b = op.x.data,
                                 .c = op.dweight.data};
  KernelCase result = {
      .flops = 2.0 * static_cast<double>(rows * linear.outputs * linear.inputs),
      .per_step = static_cast<int>(setting.model.layers),
      .run = [&kernels, context, op] { kernels.matmul_backward_weight(context, op); }};
  return against_onednn(setting, std::move(result), memory, product, onednn_limits);
}

struct AttentionTensors {
  AttentionForward forward;
  AttentionBackward backward;
};

AttentionTensors attention_tensors(const KernelSetting& setting, CaseMemory& memory) {
  const ModelConfig& model = setting.model;
  const std::int64_t rows = setting.batch.rows();
  const std::int64_t mixed = model.heads * model.head_width;
  AttentionTensors tensors;
  AttentionForward& forward = tensors.forward;
  forward.shape = {.batch = setting.batch.sequences,
                   .queries = setting.batch.positions,
                   .keys = setting.batch.positions,
                   .heads = model.heads,
                   .key_value_heads = model.key_value_heads,
                   .head_width = model.head_width};
  forward.rule.scale = 1.0F / std::sqrt(static_cast<float>(model.head_width));
  const TensorView qkv = memory.tensor(setting.type, rows, model.qkv_columns());
  const std::int64_t keys = model.key_value_heads * model.head_width;
  forward.q = columns_of(qkv, 0, mixed);
  forward.k = columns_of(qkv, mixed, keys);
  forward.v = columns_of(qkv, mixed + keys, keys);
  forward.out = memory.tensor(setting.type, rows, mixed);
  forward.log_sum_exp =
      memory.tensor(DType::kF32, setting.batch.sequences, model.heads, setting.batch.positions);
  AttentionBackward& backward = tensors.backward;
  backward = {.shape = forward.shape,
              .rule = forward.rule,
              .q = forward.q,
              .k = forward.k,
              .v = forward.v,
              .out = forward.out,
              .log_sum_exp = forward.log_sum_exp,
              .dout = memory.tensor(setting.type, rows, mixed)};
  const TensorView dqkv = memory.tensor(setting.type, rows, model.qkv_columns());
  backward.dq = columns_of(dqkv, 0, mixed);
  backward.dk = columns_of(dqkv, mixed, keys);
  backward.dv = columns_of(dqkv, mixed + keys, keys);
  return tensors;
}

// Returns a call of each head's products over half of the sequence's square, by oneDNN and without
// a softmax: `products` times for each head.
std::function<void()> head_products_alone(const KernelSetting& setting,
                                          const std::shared_ptr<CaseMemory>& memory, int products) {
  const std::int64_t head_width = setting.model.head_width;
  const std::int64_t positions = setting.batch.positions;
  const DType type = gemm_takes(setting.type) ? setting.type : DType::kF32;
  const GemmShape shape = {.m = std::max<std::int64_t>(1, positions / 2),
                           .n = positions,
                           .k = head_width,
                           .a_stride = head_width,
                           .b_stride = head_width,
                           .c_stride = positions,
                           .input = type,
                           .b_transposed = true};
  const auto workers = static_cast<std::size_t>(setting.worker_count());
  const std::size_t scratch = (gemm_scratch_bytes(shape) + 63) / 64 * 64;
  const TensorView operands = memory->tensor(type, 2 * positions, head_width);
  const auto sums_bytes = static_cast<std::size_t>(positions * positions) * sizeof(float);
  const auto share = memory->bytes((scratch + sums_bytes) * workers);
  const std::int64_t tasks = setting.batch.sequences * setting.model.heads * products;
  WorkerArena& arena = *setting.workers;
  return [=, &arena] {
    arena.parallel_for(tasks, [&](std::int64_t, int worker) {
      const auto mine = share.subspan((scratch + sums_bytes) * static_cast<std::size_t>(worker),
                                      scratch + sums_bytes);
      gemm(shape, {.a = operands.data,
                   .b = operands.data + operands.size_bytes() / 2,
                   .c = mine.data() + scratch,
                   .scratch = mine.first(scratch)});
    });
  };
}

KernelCase attention_case(const KernelSetting& setting, bool backward) {
  auto memory = setting.make_memory();
  const int workers = setting.worker_count();
  const KernelTable& kernels = setting.kernels();
  const AttentionTensors tensors = attention_tensors(setting, *memory);
  const std::size_t workspace =
      std::max(kernels.attention_forward_workspace(tensors.forward, workers),
               kernels.attention_backward_workspace(tensors.backward, workers));
  const KernelContext context = memory->context(workspace);
  kernels.attention_forward(context, tensors.forward);
  const int products = backward ? 5 : 2;
  const double positions = static_cast<double>(setting.batch.positions);
  KernelCase result = {.flops = products * positions *
                                static_cast<double>(setting.batch.rows() * setting.model.heads *
                                                    setting.model.head_width),
                       .per_step = static_cast<int>(setting.model.layers),
                       .memory = memory};
  if (setting.device == nullptr) {
    result.limits = {{"oneDNN's products for each head alone, without a softmax, all threads",
                      head_products_alone(setting, memory, products)}};
  }
  if (context.attention != nullptr) {
    result.by =
        backward ? context.attention->by(tensors.backward) : context.attention->by(tensors.forward);
  }
  if (backward) {
    result.run = [&kernels, context, tensors] {
      kernels.attention_backward(context, tensors.backward);
    };
  } else {
    result.run = [&kernels, context, tensors] {
      kernels.attention_forward(context, tensors.forward);
    };
  }
  return result;
}

// Returns the ways to compute all products together. Each product can be computed in the same ways,
// and all use one of them.
std::vector<KernelLimit> one_after_another(const std::vector<std::vector<KernelLimit>>& products) {
  std::vector<KernelLimit> ways;
  for (std::size_t way = 0; way < products.front().size(); ++way) {
    ways.push_back(
        {"the three products of the head, without loss and softmax, by " + products.front()[way].is,
         [products, way] {
           for (const auto& product : products) product[way].run();
         }});
  }
  return ways;
}

// Returns ways to compute the head's three products by oneDNN, chunk by chunk of rows, without a
// softmax.
std::vector<KernelLimit> head_alone(const KernelSetting& setting,
                                    const std::shared_ptr<CaseMemory>& memory, const HeadLoss& op) {
  const std::int64_t vocabulary = setting.model.vocabulary;
  const std::int64_t width = setting.model.width;
  const std::int64_t all_rows = setting.batch.rows();
  const std::int64_t chunk = std::min(all_rows, head_chunk_rows(vocabulary));
  const TensorView logits = memory->tensor(DType::kF32, chunk, vocabulary);
  const TensorView dlogits = memory->tensor(setting.type, chunk, vocabulary);
  const TensorView dweight = memory->tensor(DType::kF32, vocabulary, width);
  const DType type = setting.type;
  std::vector<std::vector<KernelLimit>> products;
  for (std::int64_t first = 0; first < all_rows; first += chunk) {
    const std::int64_t rows = std::min(chunk, all_rows - first);
    std::byte* h = op.h.data + static_cast<std::size_t>(first * width) * size_of(type);
    std::byte* dh = op.dh.data + static_cast<std::size_t>(first * width) * size_of(type);
    const MatrixProduct all[] = {{.shape = {.m = rows,
                                            .n = vocabulary,
                                            .k = width,
                                            .a_stride = width,
                                            .b_stride = width,
                                            .c_stride = vocabulary,
                                            .input = type,
                                            .b_transposed = true},
                                  .a = h,
                                  .b = op.weight.data,
                                  .c = logits.data},
                                 {.shape = {.m = rows,
                                            .n = width,
                                            .k = vocabulary,
                                            .a_stride = vocabulary,
                                            .b_stride = width,
                                            .c_stride = width,
                                            .input = type,
                                            .output = type},
                                  .a = dlogits.data,
                                  .b = op.weight.data,
                                  .c = dh},
                                 {.shape = {.m = vocabulary,
                                            .n = width,
                                            .k = rows,
                                            .a_stride = vocabulary,
                                            .b_stride = width,
                                            .c_stride = width,
                                            .input = type,
                                            .a_transposed = true},
                                  .a = dlogits.data,
                                  .b = h,
                                  .c = dweight.data}};
    for (const MatrixProduct& product : all) {
      products.push_back(onednn_limits(memory, product, setting.worker_count()));
    }
  }
  return one_after_another(products);
}

KernelCase head_case(const KernelSetting& setting) {
  auto memory = setting.make_memory();
  const ModelConfig& model = setting.model;
  const std::int64_t rows = setting.batch.rows();
  HeadLoss op;
  op.h = memory->tensor(setting.type, rows, model.width);
  op.weight = memory->tensor(setting.type, model.vocabulary, model.width);
  op.target = memory->indices(rows, model.vocabulary);
  op.dh = memory->tensor(setting.type, rows, model.width);
  op.dweight = memory->tensor(DType::kF32, model.vocabulary, model.width);
  op.gradient_scale = 1.0F / static_cast<float>(rows);
  op.loss_sum = memory->tensor(DType::kF64, 1).as<double>();
  const KernelTable& kernels = setting.kernels();
  const KernelContext context =
      memory->context(kernels.head_loss_workspace(op, setting.worker_count()));
  KernelCase result = {.flops = 6.0 * static_cast<double>(rows * model.vocabulary * model.width),
                       .per_step = 1,
                       .run = [&kernels, context, op] { kernels.head_loss(context, op); },
                       .memory = memory};
  if (setting.device == nullptr) {
    result.limits = head_alone(setting, memory, op);
  }
  return result;
}

}  // namespace

std::vector<KernelCaseMaker> product_cases(const KernelSetting& setting) {
  std::vector<KernelCaseMaker> makers;
  for (const Linear& linear : linears_of(setting.model)) {
    const std::string name = fmt::format("matmul_{}_", linear.name);
    makers.push_back(
        {name + "forward", [&setting, linear] { return forward_case(setting, linear); }});
    makers.push_back(
        {name + "backward_input", [&setting, linear] { return input_case(setting, linear); }});
    makers.push_back(
        {name + "backward_weight", [&setting, linear] { return weight_case(setting, linear); }});
  }
  makers.push_back({"attention_forward", [&setting] { return attention_case(setting, false); }});
  makers.push_back({"attention_backward", [&setting] { return attention_case(setting, true); }});
  makers.push_back({"head_loss", [&setting] { return head_case(setting); }});
  return makers;
}

}  // namespace terrace
