#include "tests/kernels/op_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "kernels/reference/reference_kernels.h"
#include "memory/host/worker_arena.h"

namespace terrace::test {
namespace {

Views views_of(const std::vector<HostTensor>& tensors) {
  Views views;
  for (const HostTensor& tensor : tensors) views.push_back(tensor.view());
  return views;
}

Values values_of(const std::vector<HostTensor>& tensors) {
  Values values;
  for (const HostTensor& tensor : tensors) values.push_back(tensor.values());
  return values;
}

std::vector<HostTensor> outputs_before(const OpCase& op_case, const std::vector<HostTensor>& inputs,
                                       bool wide, const RunOptions& options) {
  std::vector<HostTensor> outputs;
  for (std::size_t i = 0; i < op_case.outputs.size(); ++i) {
    const Output& output = op_case.outputs[i];
    if (output.kind == OutputKind::kInPlace) {
      outputs.push_back(inputs[output.same_as]);
    } else if (output.kind == OutputKind::kGradient && options.mode == GradientMode::kAccumulate) {
      outputs.push_back((*options.gradients_before)[i]);
    } else {
      outputs.emplace_back(wide ? widened(output.dtype) : output.dtype, output.shape);
      outputs.back().fill_garbage();
    }
  }
  return outputs;
}

// Returns a span of `size_bytes` in `storage` that begins at a multiple of 64 and ends where
// `storage` ends.
std::span<std::byte> aligned_workspace(std::vector<std::byte>& storage, std::size_t size_bytes,
                                       std::byte fill) {
  storage.assign(size_bytes + 64, fill);
  void* begin = storage.data();
  std::size_t space = storage.size();
  std::align(64, size_bytes, begin, space);
  return {static_cast<std::byte*>(begin), size_bytes};
}

bool same_bits(const HostTensor& a, const HostTensor& b) {
  return a.bytes().size() == b.bytes().size() &&
         std::memcmp(a.bytes().data(), b.bytes().data(), a.bytes().size()) == 0;
}

void expect_within(const std::vector<HostTensor>& got, const Values& want, const Values& bounds) {
  ASSERT_EQ(bounds.size(), want.size());
  for (std::size_t k = 0; k < want.size(); ++k) {
    ASSERT_EQ(bounds[k].size(), want[k].size()) << "output " << k;
    std::int64_t outside = 0;
    std::size_t worst = 0;
    double worst_ratio = 0;
    for (std::size_t i = 0; i < want[k].size(); ++i) {
      const double error = std::abs(got[k].at(static_cast<std::int64_t>(i)) - want[k][i]);
      if (error <= bounds[k][i]) continue;  // false for a NaN
      ++outside;
      const double ratio = std::isnan(error) ? HUGE_VAL : error / bounds[k][i];
      if (outside > 1 && ratio <= worst_ratio) continue;
      worst = i;
      worst_ratio = ratio;
    }
    EXPECT_EQ(outside, 0) << "elements of output " << k << " (of " << want[k].size()
                          << ") outside their bound; worst at " << worst << ": "
                          << got[k].at(static_cast<std::int64_t>(worst)) << ", want "
                          << want[k][worst] << " +- " << bounds[k][worst] << ", ratio "
                          << worst_ratio;
  }
}

void expect_accumulates(const KernelTable& table, const OpCase& op_case, CaseStage* stage,
                        const std::vector<HostTensor>& assigned) {
  const bool has_gradient = std::ranges::any_of(
      op_case.outputs, [](const Output& output) { return output.kind == OutputKind::kGradient; });
  if (!has_gradient) return;
  Random random(77);
  std::vector<HostTensor> before;
  std::vector<HostTensor> want;
  for (std::size_t k = 0; k < assigned.size(); ++k) {
    const Output& output = op_case.outputs[k];
    before.push_back(HostTensor::random(output.dtype, output.shape, random));
    want.push_back(assigned[k]);
    if (output.kind != OutputKind::kGradient) continue;
    ASSERT_EQ(output.dtype, DType::kF32);
    for (std::int64_t i = 0; i < want[k].elements(); ++i) {
      float& sum = want[k].view().as<float>()[i];
      sum = before[k].view().as<float>()[i] + sum;
    }
  }
  const RunOptions options{
      .workers = 2, .mode = GradientMode::kAccumulate, .gradients_before = &before, .stage = stage};
  expect_same_bits(run_case(table, op_case, false, options), want, "accumulated");
}

void run_here(const KernelTable& table, const OpCase& op_case, const RunOptions& options,
              const std::vector<HostTensor>& inputs, const std::vector<HostTensor>& outputs) {
  const Views in = views_of(inputs);
  const Views out = views_of(outputs);
  WorkerArena workers(options.workers);
  std::vector<std::byte> storage;
  KernelContext context;
  context.workers = &workers;
  context.workspace = aligned_workspace(
      storage, op_case.workspace_bytes(table, in, out, options.mode, options.workers),
      options.workspace_fill);
  op_case.run(table, context, in, out, options.mode);
}

void run_staged(const KernelTable& table, const OpCase& op_case, const RunOptions& options,
                std::vector<HostTensor>& inputs, std::vector<HostTensor>& outputs) {
  const Views in = options.stage->upload(inputs);
  const Views out = options.stage->upload(outputs);
  const KernelContext context =
      options.stage->context(op_case.workspace_bytes(table, in, out, options.mode, options.workers),
                             options.workspace_fill);
  op_case.run(table, context, in, out, options.mode);
  options.stage->download({&inputs, &outputs});
}

}  // namespace

void expect_same_bits(const std::vector<HostTensor>& got, const std::vector<HostTensor>& want,
                      const std::string& what) {
  for (std::size_t k = 0; k < want.size(); ++k) {
    if (same_bits(got[k], want[k])) continue;
    for (std::int64_t i = 0; i < want[k].elements(); ++i) {
      const double a = got[k].at(i);
      const double b = want[k].at(i);
      if (a == b && std::signbit(a) == std::signbit(b)) continue;
      ADD_FAILURE() << what << ": output " << k << " differs, first at element " << i << " of "
                    << want[k].elements() << ": " << a << " and " << b;
      break;
    }
  }
}

std::vector<HostTensor> run_case(const KernelTable& table, const OpCase& op_case, bool wide,
                                 const RunOptions& options) {
  std::vector<HostTensor> inputs;
  for (const HostTensor& input : op_case.inputs) inputs.push_back(wide ? input.widened() : input);
  std::vector<HostTensor> outputs = outputs_before(op_case, inputs, wide, options);
  if (options.on_boundary) {
    for (HostTensor& tensor : inputs) tensor = tensor.on_boundary();
    for (HostTensor& tensor : outputs) tensor = tensor.on_boundary();
  }
  const std::vector<HostTensor> inputs_before = inputs;
  if (options.stage != nullptr) {
    run_staged(table, op_case, options, inputs, outputs);
  } else {
    run_here(table, op_case, options, inputs, outputs);
  }
  expect_same_bits(inputs, inputs_before, "inputs after the call");
  return outputs;
}

void expect_conforms(const KernelTable& table, const OpCase& op_case, CaseStage* stage) {
  SCOPED_TRACE(std::string(table.name) + ": " + op_case.name);
  RunOptions options{.stage = stage};
  const std::vector<HostTensor> got = run_case(table, op_case, false, options);
  if (op_case.bounds) {
    std::vector<HostTensor> wide_inputs;
    for (const HostTensor& input : op_case.inputs) wide_inputs.push_back(input.widened());
    const Values want = values_of(run_case(reference_kernels(), op_case, true, {}));
    expect_within(got, want, op_case.bounds(values_of(wide_inputs), want));
  } else {
    expect_same_bits(got, run_case(reference_kernels(), op_case, false, {}), "the reference");
  }
  expect_same_bits(run_case(table, op_case, false, options), got, "a second run");
  options.workers = 2;
  options.workspace_fill = std::byte{0};
  expect_same_bits(run_case(table, op_case, false, options), got, "two workers");
  options.workers = 3;
  options.workspace_fill = std::byte{0x3E};
  expect_same_bits(run_case(table, op_case, false, options), got, "three workers");
  expect_accumulates(table, op_case, stage, got);
}

void expect_same_on_boundary(const KernelTable& table, const OpCase& op_case, CaseStage* stage) {
  SCOPED_TRACE(std::string(table.name) + ": " + op_case.name);
  const RunOptions options{.on_boundary = true, .stage = stage};
  expect_same_bits(run_case(table, op_case, false, options),
                   run_case(table, op_case, false, {.stage = stage}), "on a boundary");
}

}  // namespace terrace::test
