#include <array>

#include "bench/kernel_cases.h"
#include "bench/update_forms.h"

namespace terrace {
namespace {

double size_of_all(std::initializer_list<TensorView> tensors) {
  double bytes = 0;
  for (const TensorView& tensor : tensors) bytes += static_cast<double>(tensor.size_bytes());
  return bytes;
}

// Makes a case of a kernel from fp32 elements to others. `passes` over the target: 2 if it is read
// too.
template <typename Op>
KernelCase source_case(const KernelSetting& setting,
                       void (*KernelTable::*kernel)(const KernelContext&, const Op&),
                       TensorView target, int passes) {
  const std::shared_ptr<CaseMemory> memory = setting.make_memory();
  const KernelTable& kernels = setting.kernels();
  const KernelContext context = memory->context(0);
  const Op op = {memory->tensor(DType::kF32, target.elements()),
                 memory->tensor(target.dtype, target.elements())};
  return {.bytes = size_of_all({op.source}) + passes * size_of_all({op.target}),
          .run = [&kernels, kernel, context, op] { (kernels.*kernel)(context, op); },
          .memory = memory};
}

KernelCase accumulate_case(const KernelSetting& setting, std::int64_t elements) {
  return source_case(setting, &KernelTable::accumulate_gradient,
                     view(nullptr, DType::kF32, elements), 2);
}

KernelCase round_case(const KernelSetting& setting, std::int64_t elements) {
  return source_case(setting, &KernelTable::round_gradient, view(nullptr, DType::kBF16, elements),
                     1);
}

KernelCase cast_case(const KernelSetting& setting, std::int64_t elements) {
  return source_case(setting, &KernelTable::cast_parameters, view(nullptr, DType::kBF16, elements),
                     1);
}

// The codes of a case, as a kernel would get them from some ranks.
constexpr std::int64_t kCodingRanks = 8;

struct CodedNumbers {
  TensorView source, codes, errors;  // errors as one encoding leaves them
};
CodedNumbers coded_numbers(const KernelSetting& setting, CaseMemory& memory, WireForm form,
                           std::int64_t elements) {
  const auto bytes = [](WireForm of, std::int64_t count) {
    return static_cast<std::int64_t>(coded_bytes(of, count));
  };
  const CodedNumbers coded = {
      memory.tensor(DType::kF32, elements),
      memory.tensor(DType::kU8, kCodingRanks, bytes(form, elements / kCodingRanks)),
      memory.tensor(DType::kU8, bytes(WireForm::kInt8, elements))};
  setting.kernels().encode_wire(memory.context(0), {form, coded.source, coded.codes, coded.errors});
  return coded;
}

// Makes a case of encoding gradients for all ranks, with errors.
KernelCase encode_wire_case(const KernelSetting& setting, std::int64_t elements) {
  const std::shared_ptr<CaseMemory> memory = setting.make_memory();
  const KernelTable& kernels = setting.kernels();
  const KernelContext context = memory->context(0);
  const auto [source, codes, errors] = coded_numbers(setting, *memory, WireForm::kInt4, elements);
  const EncodeWire op = {WireForm::kInt4, source, codes, errors};
  return {.bytes = size_of_all({source, codes, errors, errors}),
          .run = [&kernels, context, op] { kernels.encode_wire(context, op); },
          .memory = memory};
}

// Makes a case of decoding parameters.
KernelCase decode_wire_case(const KernelSetting& setting, std::int64_t elements) {
  const std::shared_ptr<CaseMemory> memory = setting.make_memory();
  const KernelTable& kernels = setting.kernels();
  const KernelContext context = memory->context(0);
  const CodedNumbers coded = coded_numbers(setting, *memory, WireForm::kInt8, elements);
  const DecodeWire op = {WireForm::kInt8, coded.codes, memory->tensor(DType::kBF16, elements)};
  return {.bytes = size_of_all({op.codes, op.target}),
          .run = [&kernels, context, op] { kernels.decode_wire(context, op); },
          .memory = memory};
}

// Makes a case of adding the gradients of all ranks, each a part of `elements`.
KernelCase sum_wire_case(const KernelSetting& setting, std::int64_t elements) {
  const std::shared_ptr<CaseMemory> memory = setting.make_memory();
  const KernelTable& kernels = setting.kernels();
  const KernelContext context = memory->context(0);
  const CodedNumbers coded = coded_numbers(setting, *memory, WireForm::kInt4, elements);
  const SumWire op = {WireForm::kInt4, coded.codes,
                      memory->tensor(DType::kF32, elements / kCodingRanks)};
  return {.bytes = size_of_all({op.codes, op.target}),
          .run = [&kernels, context, op] { kernels.sum_wire(context, op); },
          .memory = memory};
}

KernelCase fill_case(const KernelSetting& setting, std::int64_t elements) {
  const std::shared_ptr<CaseMemory> memory = setting.make_memory();
  const KernelTable& kernels = setting.kernels();
  const KernelContext context = memory->context(0);
  const FillZero op = {memory->tensor(DType::kF32, elements)};
  return {.bytes = size_of_all({op.target}),
          .run = [&kernels, context, op] { kernels.fill_zero(context, op); },
          .memory = memory};
}

KernelCase norm_partials_case(const KernelSetting& setting, std::int64_t elements) {
  const std::shared_ptr<CaseMemory> memory = setting.make_memory();
  const KernelTable& kernels = setting.kernels();
  const KernelContext context = memory->context(0);
  const NormPartials op = {memory->tensor(DType::kF32, elements),
                           memory->tensor(DType::kF64, elements / kNormBlock)};
  return {.bytes = size_of_all({op.gradient, op.partials}),
          .run = [&kernels, context, op] { kernels.norm_partials(context, op); },
          .memory = memory};
}

// Rows of the embedding are read once a token, and rows of the position embedding once.
KernelCase embedding_forward_case(const KernelSetting& setting) {
  const std::shared_ptr<CaseMemory> memory = setting.make_memory();
  const ModelConfig& model = setting.model;
  const KernelTable& kernels = setting.kernels();
  const KernelContext context = memory->context(0);
  EmbeddingForward op;
  op.tokens = memory->indices(setting.batch.rows(), model.vocabulary);
  op.wte = memory->tensor(setting.type, model.vocabulary, model.width);
  op.h = memory->tensor(setting.type, setting.batch.rows(), model.width);
  op.sequence = setting.batch.positions;
  KernelCase result = {.memory = memory};
  result.bytes = size_of_all({op.h, op.h, op.tokens});
  if (model.has_position_embedding) {
    op.wpe = memory->tensor(setting.type, setting.batch.positions, model.width);
    result.bytes += size_of_all({op.wpe});
  }
  result.run = [&kernels, context, op] { kernels.embedding_forward(context, op); };
  return result;
}

KernelCase embedding_backward_case(const KernelSetting& setting) {
  struct Operands {
    std::array<TensorView, 1> tokens, dh;  // that the op refers to
  };
  const std::shared_ptr<CaseMemory> memory = setting.make_memory();
  const ModelConfig& model = setting.model;
  const std::int64_t rows = setting.batch.rows();
  const KernelTable& kernels = setting.kernels();
  const KernelContext context = memory->context(kernels.embedding_backward_workspace(
      rows, 1, model.vocabulary, model.width, setting.worker_count()));
  const auto operands = std::make_shared<Operands>();
  operands->tokens = {memory->indices(rows, model.vocabulary)};
  operands->dh = {memory->tensor(setting.type, rows, model.width)};
  EmbeddingBackward op;
  op.tokens = operands->tokens;
  op.dh = operands->dh;
  op.dwte = memory->tensor(DType::kF32, model.vocabulary, model.width);
  op.sequence = setting.batch.positions;
  KernelCase result = {.memory = memory};
  result.bytes = size_of_all({op.tokens[0], op.dh[0], op.dwte});
  if (model.has_position_embedding) {
    op.dwpe = memory->tensor(DType::kF32, setting.batch.positions, model.width);
    result.bytes += size_of_all({op.dh[0], op.dwpe});
  }
  result.run = [&kernels, context, op, operands] { kernels.embedding_backward(context, op); };
  return result;
}

KernelCase add_positions_case(const KernelSetting& setting) {
  const std::shared_ptr<CaseMemory> memory = setting.make_memory();
  const KernelTable& kernels = setting.kernels();
  const KernelContext context = memory->context(0);
  AddPositions op;
  op.h = memory->tensor(setting.type, setting.batch.rows(), setting.model.width);
  op.wpe = memory->tensor(setting.type, setting.batch.positions, setting.model.width);
  op.sequence = setting.batch.positions;
  return {.bytes = size_of_all({op.h, op.h, op.wpe}),
          .run = [&kernels, context, op] { kernels.add_positions(context, op); },
          .memory = memory};
}

// Makes a case of one update, the whole of which is one kernel.
KernelCase update_case(const KernelSetting& setting, const UpdateForm& form,
                       std::int64_t elements) {
  const std::shared_ptr<CaseMemory> memory = setting.make_memory();
  const LaneKernels& kernels = setting.device->kernels();
  const KernelContext context = memory->context(0);
  const UpdateRule& rule = *form.rule;
  const StepScalars scalars = {.learning_rate = 3e-4F,
                               .of_rule = rule.step_scalars(standard_options(rule), 10, 3e-4),
                               .step = 10};
  ParameterUpdate update;
  update.gradient = memory->tensor(DType::kF32, elements);
  update.parameter = memory->tensor(DType::kBF16, elements);
  set_state_views(update, form.state, memory->zeros(form.state.bytes(elements)).data(), elements);
  update.options = standard_options(rule);
  update.options.weight_decay = 0.1F;
  const auto at = memory->holding(std::as_bytes(std::span(&scalars, 1)));
  update.scalars = reinterpret_cast<const StepScalars*>(at.data());
  return {.bytes = update_traffic_bytes(form.state, elements),
          .run = [&kernels, &rule, context, update] { kernels.update(context, rule, update); },
          .memory = memory};
}

}  // namespace

std::vector<KernelCaseMaker> state_cases(const KernelSetting& setting, std::int64_t elements) {
  std::vector<KernelCaseMaker> makers = {
      {"embedding_forward", [&setting] { return embedding_forward_case(setting); }},
      {"embedding_backward", [&setting] { return embedding_backward_case(setting); }}};
  if (setting.model.has_position_embedding) {
    makers.push_back({"add_positions", [&setting] { return add_positions_case(setting); }});
  }
  struct ElementCase {
    const char* name;
    KernelCase (*make)(const KernelSetting& setting, std::int64_t elements);
  };
  for (const ElementCase& one : {ElementCase{"accumulate_gradient", accumulate_case},
                                 {"round_gradient", round_case},
                                 {"cast_parameters", cast_case},
                                 {"encode_wire", encode_wire_case},
                                 {"decode_wire", decode_wire_case},
                                 {"sum_wire", sum_wire_case},
                                 {"fill_zero", fill_case},
                                 {"norm_partials", norm_partials_case}}) {
    makers.push_back(
        {one.name, [&setting, make = one.make, elements] { return make(setting, elements); }});
  }
  for (const UpdateForm& form : update_forms()) {
    makers.push_back(
        {form.name, [&setting, form, elements] { return update_case(setting, form, elements); }});
  }
  return makers;
}

}  // namespace terrace
