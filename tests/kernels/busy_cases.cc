#include <fmt/format.h>

#include "tests/kernels/op_case.h"

// Calls with enough to do for several workers (fed_workers in kernels/cpu/cpu_workspace.h); the
// cases of the families are too small for that. They have no bounds, because bits are compared.
namespace terrace::test {
namespace {

using Tensors = std::vector<HostTensor>;

constexpr double kSize = 0.5;

// Sequences of less than a panel of keys, with several heads in a group and with one head in a
// group; and a sequence of several panels, whose queries are split among tasks.
constexpr AttentionShape kBusyAttention[] = {
    {3, 200, 200, 4, 2, 40}, {4, 150, 150, 3, 3, 64}, {1, 1100, 1100, 2, 1, 32}};

void add_attention(std::vector<OpCase>& cases, DType compute, const AttentionShape& s) {
  Random random(11);
  const std::int64_t R = s.batch * s.queries;
  const std::int64_t queries = s.heads * s.head_width;
  const std::int64_t keys = s.key_value_heads * s.head_width;
  const Shape qkv = shape(R, queries + 2 * keys);
  const Shape out = shape(R, queries);
  const Shape statistics = shape(s.batch, s.heads, s.queries);
  constexpr AttentionRule kRule = {.scale = 0.2F};
  OpCase forward;
  forward.name = fmt::format("busy attention_forward T={}", s.queries);
  forward.inputs.push_back(HostTensor::random(compute, qkv, random, kSize));
  forward.outputs = {{.dtype = compute, .shape = out}, {.dtype = DType::kF32, .shape = statistics}};
  set_op(forward, &KernelTable::attention_forward, &KernelTable::attention_forward_workspace,
         [=](const Views& in, const Views& to, GradientMode) {
           return AttentionForward{s,
                                   kRule,
                                   columns_of(in[0], 0, queries),
                                   columns_of(in[0], queries, keys),
                                   columns_of(in[0], queries + keys, keys),
                                   to[0],
                                   to[1]};
         });
  cases.push_back(forward);
  OpCase backward;
  backward.name = fmt::format("busy attention_backward T={}", s.queries);
  backward.inputs = Tensors{forward.inputs[0], HostTensor::random(compute, out, random, kSize),
                            HostTensor::random(DType::kF32, statistics, random, kSize),
                            HostTensor::random(compute, out, random, kSize)};
  backward.outputs = {{.dtype = compute, .shape = qkv}};
  set_op(backward, &KernelTable::attention_backward, &KernelTable::attention_backward_workspace,
         [=](const Views& in, const Views& to, GradientMode) {
           return AttentionBackward{s,
                                    kRule,
                                    columns_of(in[0], 0, queries),
                                    columns_of(in[0], queries, keys),
                                    columns_of(in[0], queries + keys, keys),
                                    in[1],
                                    in[2],
                                    in[3],
                                    columns_of(to[0], 0, queries),
                                    columns_of(to[0], queries, keys),
                                    columns_of(to[0], queries + keys, keys)};
         });
  cases.push_back(backward);
}

void add_products(std::vector<OpCase>& cases, DType compute) {
  Random random(12);
  const HostTensor x = HostTensor::random(compute, shape(600, 260), random);
  const HostTensor weight = HostTensor::random(compute, shape(530, 260), random);
  const HostTensor dy = HostTensor::random(compute, shape(600, 530), random);
  OpCase forward;
  forward.name = "busy matmul_forward";
  forward.inputs = Tensors{x, weight, HostTensor::random(compute, shape(530), random)};
  forward.outputs = {{.dtype = compute, .shape = shape(600, 530)}};
  set_op(forward, &KernelTable::matmul_forward, &KernelTable::matmul_forward_workspace,
         [](const Views& in, const Views& to, GradientMode) {
           return MatmulForward{in[0], in[1], in[2], to[0]};
         });
  cases.push_back(forward);
  OpCase input;
  input.name = "busy matmul_backward_input";
  input.inputs = Tensors{dy, weight};
  input.outputs = {{.dtype = compute, .shape = shape(600, 260)}};
  set_op(input, &KernelTable::matmul_backward_input, &KernelTable::matmul_backward_input_workspace,
         [](const Views& in, const Views& to, GradientMode) {
           return MatmulBackwardInput{in[0], in[1], to[0]};
         });
  cases.push_back(input);
  OpCase gradient;
  gradient.name = "busy matmul_backward_weight";
  gradient.inputs = Tensors{dy, x};
  gradient.outputs = {{DType::kF32, shape(530, 260), OutputKind::kGradient},
                      {DType::kF32, shape(530), OutputKind::kGradient}};
  set_op(gradient, &KernelTable::matmul_backward_weight,
         &KernelTable::matmul_backward_weight_workspace,
         [](const Views& in, const Views& to, GradientMode mode) {
           return MatmulBackwardWeight{in[0], in[1], to[0], to[1], mode};
         });
  cases.push_back(gradient);
}

void add_head(std::vector<OpCase>& cases, DType compute) {
  Random random(13);
  OpCase head;
  head.name = "busy head_loss";
  head.inputs = Tensors{HostTensor::random(compute, shape(300, 96), random, kSize),
                        HostTensor::random(compute, shape(1500, 96), random, kSize),
                        HostTensor::random_indices(shape(300), random, 1500)};
  head.outputs = {{.dtype = DType::kF64, .shape = shape(1)},
                  {.dtype = compute, .shape = shape(300, 96)},
                  {DType::kF32, shape(1500, 96), OutputKind::kGradient}};
  set_op(head, &KernelTable::head_loss, &KernelTable::head_loss_workspace,
         [](const Views& in, const Views& to, GradientMode mode) {
           HeadLoss op;
           op.h = in[0];
           op.weight = in[1];
           op.target = in[2];
           op.loss_sum = to[0].as<double>();
           op.dh = to[1];
           op.dweight = to[2];
           op.mode = mode;
           return op;
         });
  cases.push_back(head);
}

}  // namespace

std::vector<OpCase> busy_cases(DType compute) {
  std::vector<OpCase> cases;
  for (const AttentionShape& s : kBusyAttention) add_attention(cases, compute, s);
  add_products(cases, compute);
  add_head(cases, compute);
  return cases;
}

}  // namespace terrace::test
