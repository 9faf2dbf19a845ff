#include <fmt/format.h>

#include <optional>

#include "tests/kernels/op_case.h"

// The order of every addition is part of the contract here, so all results must have the bits of
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

// The padding token, which adds nothing to the gradient: it is in the batch, or it is not.
enum class Padding : std::uint8_t { kNone, kInBatch, kNotInBatch };

struct Options {
  bool with_wpe = false;
  bool of_part = false;          // the second of three parts of the vocabulary
  bool given_positions = false;  // with wpe
  float scale = 1.0F;
  Padding padding = Padding::kNone;

  std::string name() const {
    return fmt::format("wpe={} part={} positions={} scale={} padding={}", with_wpe, of_part,
                       given_positions, scale, static_cast<int>(padding));
  }
};

std::int64_t rows_of(const EmbeddingShape& s) { return s.batch * s.T; }

// Returns the op's sequence, which is not read where positions are given.
std::int64_t sequence_of(const EmbeddingShape& s, bool given_positions) {
  return given_positions ? 0 : s.T;
}

std::optional<std::int64_t> first_token(const EmbeddingShape& s, const Options& o) {
  return o.of_part ? std::optional(s.V) : std::nullopt;
}

HostTensor random_tokens(const EmbeddingShape& s, const Options& o, Random& random) {
  const std::int64_t tokens = o.of_part ? 3 * s.V : s.V;
  return HostTensor::random_indices(shape(rows_of(s)), random, static_cast<std::int32_t>(tokens));
}

// Returns positions as documents have them: several rows of a sequence share a position, and some
// positions have no row.
HostTensor random_positions(const EmbeddingShape& s, Random& random) {
  return HostTensor::random_indices(shape(rows_of(s)), random,
                                    static_cast<std::int32_t>(s.T / 2 + kSparePositions));
}

// Inputs: tokens, wte, wpe, positions.
OpCase forward_case(DType compute, const EmbeddingShape& s, const Options& o, Random& random) {
  OpCase c;
  c.name = fmt::format("embedding_forward R={} C={} V={} {}", rows_of(s), s.C, s.V, o.name());
  c.inputs.push_back(random_tokens(s, o, random));
  c.inputs.push_back(HostTensor::random(compute, shape(s.V, s.C), random));
  c.inputs.push_back(HostTensor::random(compute, shape(s.T + kSparePositions, s.C), random));
  c.inputs.push_back(random_positions(s, random));
  c.outputs = {{.dtype = compute, .shape = shape(rows_of(s), s.C)}};
  set_op(c, &KernelTable::embedding_forward,
         [s, o](const Views& in, const Views& out, GradientMode) {
           return EmbeddingForward{.tokens = in[0],
                                   .wte = in[1],
                                   .wpe = o.with_wpe ? in[2] : TensorView{},
                                   .h = out[0],
                                   .sequence = sequence_of(s, o.given_positions),
                                   .first_token = first_token(s, o),
                                   .positions = o.given_positions ? in[3] : TensorView{},
                                   .scale = o.scale};
         });
  return c;
}

OpCase add_positions_case(DType compute, const EmbeddingShape& s, std::int64_t first_row,
                          bool given_positions, Random& random) {
  OpCase c;
  const std::int64_t R = rows_of(s);
  c.name = fmt::format("add_positions R={} C={} from row {} given={}", R, s.C, first_row,
                       given_positions);
  c.inputs.push_back(HostTensor::random(compute, shape(R, s.C), random));
  c.inputs.push_back(HostTensor::random(compute, shape(s.T + kSparePositions, s.C), random));
  c.inputs.push_back(random_positions(s, random));
  c.outputs = {{.dtype = compute, .shape = shape(R, s.C), .kind = OutputKind::kInPlace}};
  set_op(c, &KernelTable::add_positions,
         [s, first_row, given_positions](const Views& in, const Views& out, GradientMode) {
           return AddPositions{out[0], in[1], sequence_of(s, given_positions), first_row,
                               given_positions ? in[2] : TensorView{}};
         });
  return c;
}

// Makes the last token of the vocabulary, or of the part, the padding token: the first row of every
// micro-batch has it, or no row has it. Returns the token.
std::int64_t place_padding(std::vector<HostTensor>& tokens, const EmbeddingShape& s,
                           const Options& o) {
  if (o.padding == Padding::kNone) return -1;
  const std::int64_t padding = first_token(s, o).value_or(0) + s.V - 1;
  for (HostTensor& of_micro_batch : tokens) {
    for (std::int64_t r = 0; r < of_micro_batch.elements(); ++r) {
      const bool is_padding = of_micro_batch.at(r) == static_cast<double>(padding);
      if (o.padding == Padding::kNotInBatch && is_padding) of_micro_batch.set(r, 0);
    }
    if (o.padding == Padding::kInBatch) of_micro_batch.set(0, static_cast<double>(padding));
  }
  return padding;
}

// Inputs: the tokens of all micro-batches, then their positions, then their dh.
OpCase backward_case(DType compute, const EmbeddingShape& s, const Options& o, Random& random) {
  OpCase c;
  const std::int64_t R = rows_of(s);
  c.name = fmt::format("embedding_backward R={} C={} V={} micro-batches={} {}", R, s.C, s.V,
                       s.micro_batches, o.name());
  for (std::int64_t m = 0; m < s.micro_batches; ++m) {
    c.inputs.push_back(random_tokens(s, o, random));
  }
  const std::int64_t padding = place_padding(c.inputs, s, o);
  for (std::int64_t m = 0; m < s.micro_batches; ++m) {
    c.inputs.push_back(random_positions(s, random));
  }
  for (std::int64_t m = 0; m < s.micro_batches; ++m) {
    c.inputs.push_back(HostTensor::random(compute, shape(R, s.C), random));
  }
  c.outputs.push_back({DType::kF32, shape(s.V, s.C), OutputKind::kGradient});
  if (o.with_wpe) c.outputs.push_back({DType::kF32, shape(s.T + kSparePositions, s.C)});
  c.run = [s, o, padding](const KernelTable& table, const KernelContext& context, const Views& in,
                          const Views& out, GradientMode mode) {
    const std::span<const TensorView> inputs(in);
    EmbeddingBackward op;
    op.tokens = inputs.first(s.micro_batches);
    op.dh = inputs.last(s.micro_batches);
    op.dwte = out[0];
    if (o.with_wpe) op.dwpe = out[1];
    op.sequence = sequence_of(s, o.given_positions);
    op.wte_mode = mode;
    op.first_token = first_token(s, o);
    if (o.given_positions) op.positions = inputs.subspan(s.micro_batches, s.micro_batches);
    op.scale = o.scale;
    op.padding_token = padding;
    table.embedding_backward(context, op);
  };
  c.workspace_bytes = [s, R](const KernelTable& table, const Views&, const Views&, GradientMode,
                             int workers) {
    return table.embedding_backward_workspace(R, s.micro_batches, s.V, s.C, workers);
  };
  return c;
}

constexpr float kEmbeddingScale = 5.3F;

constexpr Options kForwardOptions[] = {
    {},
    {.with_wpe = true},
    {.of_part = true},
    {.with_wpe = true, .given_positions = true},
    {.scale = kEmbeddingScale},
    {.with_wpe = true, .scale = kEmbeddingScale},
    {.with_wpe = true, .given_positions = true, .scale = kEmbeddingScale},
    {.of_part = true, .scale = kEmbeddingScale}};
constexpr Options kBackwardOptions[] = {
    {},
    {.with_wpe = true},
    {.of_part = true},
    {.with_wpe = true, .of_part = true},
    {.with_wpe = true, .given_positions = true},
    {.scale = kEmbeddingScale},
    {.with_wpe = true, .given_positions = true, .scale = kEmbeddingScale},
    {.padding = Padding::kInBatch},
    {.padding = Padding::kNotInBatch},
    {.with_wpe = true, .of_part = true, .scale = kEmbeddingScale, .padding = Padding::kInBatch}};

}  // namespace

std::vector<OpCase> embedding_cases(DType compute) {
  Random random(7);
  std::vector<OpCase> cases;
  for (const EmbeddingShape& s : kEmbeddingShapes) {
    for (const Options& o : kForwardOptions) cases.push_back(forward_case(compute, s, o, random));
    for (const Options& o : kBackwardOptions) {
      cases.push_back(backward_case(compute, s, o, random));
    }
    for (const std::int64_t first_row : {std::int64_t{0}, 2 * s.T + s.T / 2}) {
      cases.push_back(add_positions_case(compute, s, first_row, false, random));
    }
    cases.push_back(add_positions_case(compute, s, 3, true, random));
  }
  return cases;
}

}  // namespace terrace::test
