#include <fmt/format.h>

#include "tests/kernels/op_case.h"

// The order of every addition is part of the contract here, so all results are held to the bits of
// the reference.
namespace terrace::test {
namespace {

struct EmbeddingShape {
  std::int64_t batch, T, C, V, micro_batches;
};

// The third sorts in two passes; the last has tokens that are in many rows.
constexpr EmbeddingShape kEmbeddingShapes[] = {{1, 1, 1, 1, 1},
                                               {2, 17, 33, 11, 3},
                                               {1, 130, 64, 600, 2},
                                               {3, 5, 100, 4, 1},
                                               {2, 40, 24, 3, 2}};

constexpr std::int64_t kSparePositions = 3;  // rows of wpe past the sequence

OpCase forward_case(DType compute, const EmbeddingShape& s, bool with_positions, Random& random) {
  OpCase c;
  const std::int64_t R = s.batch * s.T;
  c.name = fmt::format("embedding_forward R={} C={} V={} wpe={}", R, s.C, s.V, with_positions);
  c.inputs.push_back(HostTensor::random_indices(shape(R), random, static_cast<std::int32_t>(s.V)));
  c.inputs.push_back(HostTensor::random(compute, shape(s.V, s.C), random));
  c.inputs.push_back(HostTensor::random(compute, shape(s.T + kSparePositions, s.C), random));
  c.outputs = {{.dtype = compute, .shape = shape(R, s.C)}};
  set_op(c, &KernelTable::embedding_forward,
         [T = s.T, with_positions](const Views& in, const Views& out, GradientMode) {
           return EmbeddingForward{.tokens = in[0],
                                   .wte = in[1],
                                   .wpe = with_positions ? in[2] : TensorView{},
                                   .h = out[0],
                                   .sequence = T};
         });
  return c;
}

// A part of a vocabulary of 3 V tokens: the second.
OpCase part_forward_case(DType compute, const EmbeddingShape& s, Random& random) {
  OpCase c;
  const std::int64_t R = s.batch * s.T;
  c.name = fmt::format("embedding_forward R={} C={} V={} of a part", R, s.C, s.V);
  c.inputs.push_back(
      HostTensor::random_indices(shape(R), random, static_cast<std::int32_t>(3 * s.V)));
  c.inputs.push_back(HostTensor::random(compute, shape(s.V, s.C), random));
  c.outputs = {{.dtype = compute, .shape = shape(R, s.C)}};
  set_op(c, &KernelTable::embedding_forward, [s](const Views& in, const Views& out, GradientMode) {
    return EmbeddingForward{in[0], in[1], TensorView{}, out[0], s.T, s.V};
  });
  return c;
}

OpCase positions_case(DType compute, const EmbeddingShape& s, std::int64_t first_row,
                      Random& random) {
  OpCase c;
  const std::int64_t R = s.batch * s.T;
  c.name = fmt::format("add_positions R={} C={} from row {}", R, s.C, first_row);
  c.inputs.push_back(HostTensor::random(compute, shape(R, s.C), random));
  c.inputs.push_back(HostTensor::random(compute, shape(s.T + kSparePositions, s.C), random));
  c.outputs = {{.dtype = compute, .shape = shape(R, s.C), .kind = OutputKind::kInPlace}};
  set_op(c, &KernelTable::add_positions,
         [T = s.T, first_row](const Views& in, const Views& out, GradientMode) {
           return AddPositions{out[0], in[1], T, first_row};
         });
  return c;
}

// Inputs: the tokens of all micro-batches, then their dh. Of a part: the second of three.
OpCase backward_case(DType compute, const EmbeddingShape& s, bool with_positions, Random& random,
                     bool of_part = false) {
  OpCase c;
  const std::int64_t R = s.batch * s.T;
  c.name = fmt::format("embedding_backward R={} C={} V={} micro-batches={} wpe={} part={}", R, s.C,
                       s.V, s.micro_batches, with_positions, of_part);
  const std::int64_t tokens = of_part ? 3 * s.V : s.V;
  for (std::int64_t m = 0; m < s.micro_batches; ++m) {
    c.inputs.push_back(
        HostTensor::random_indices(shape(R), random, static_cast<std::int32_t>(tokens)));
  }
  for (std::int64_t m = 0; m < s.micro_batches; ++m) {
    c.inputs.push_back(HostTensor::random(compute, shape(R, s.C), random));
  }
  c.outputs.push_back({DType::kF32, shape(s.V, s.C), OutputKind::kGradient});
  if (with_positions) c.outputs.push_back({DType::kF32, shape(s.T + kSparePositions, s.C)});
  const auto first_token = of_part ? std::optional(s.V) : std::nullopt;
  c.run = [s, with_positions, first_token](const KernelTable& table, const KernelContext& context,
                                           const Views& in, const Views& out, GradientMode mode) {
    const std::span<const TensorView> inputs(in);
    table.embedding_backward(context,
                             EmbeddingBackward{.tokens = inputs.first(s.micro_batches),
                                               .dh = inputs.last(s.micro_batches),
                                               .dwte = out[0],
                                               .dwpe = with_positions ? out[1] : TensorView{},
                                               .sequence = s.T,
                                               .wte_mode = mode,
                                               .first_token = first_token});
  };
  c.workspace_bytes = [s, R](const KernelTable& table, const Views&, const Views&, GradientMode,
                             int workers) {
    return table.embedding_backward_workspace(R, s.micro_batches, s.V, s.C, workers);
  };
  return c;
}

}  // namespace

std::vector<OpCase> embedding_cases(DType compute) {
  Random random(7);
  std::vector<OpCase> cases;
  for (const EmbeddingShape& s : kEmbeddingShapes) {
    for (const bool with_positions : {false, true}) {
      cases.push_back(forward_case(compute, s, with_positions, random));
      cases.push_back(backward_case(compute, s, with_positions, random));
      cases.push_back(backward_case(compute, s, with_positions, random, true));
    }
    cases.push_back(part_forward_case(compute, s, random));
    for (const std::int64_t first_row : {std::int64_t{0}, 2 * s.T + s.T / 2}) {
      cases.push_back(positions_case(compute, s, first_row, random));
    }
  }
  return cases;
}

}  // namespace terrace::test
