#include "tests/programs/compile_case.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/step/task_order.h"
#include "runtime/step/verify.h"

// This is the only file that knows the product's types and options.
namespace terrace {
namespace {

constexpr std::size_t kWorkspaceBytes = kMiB;

Tier tier_of(CaseTier tier) {
  switch (tier) {
    case CaseTier::kDevice:
      return Tier::kDevice;
    case CaseTier::kHost:
      return Tier::kHost;
    case CaseTier::kDrive:
      return Tier::kNvme;
  }
  return Tier::kHost;
}

DType type_of(CaseType type) {
  switch (type) {
    case CaseType::kFp32:
      return DType::kF32;
    case CaseType::kBf16:
      return DType::kBF16;
    case CaseType::kFp16:
      return DType::kF16;
  }
  return DType::kF32;
}

SlotForm moments_of(CaseMoments moments) {
  switch (moments) {
    case CaseMoments::kFp32:
      return SlotForm::kFp32;
    case CaseMoments::kBf16:
      return SlotForm::kBf16;
    case CaseMoments::kInt8:
      return SlotForm::kInt8;
  }
  return SlotForm::kFp32;
}

PipelineSchedule schedule_of(CaseSchedule schedule) {
  switch (schedule) {
    case CaseSchedule::k1F1B:
      return PipelineSchedule::k1F1B;
    case CaseSchedule::kGpipe:
      return PipelineSchedule::kGpipe;
    case CaseSchedule::kInterleaved:
      return PipelineSchedule::kInterleaved;
  }
  return PipelineSchedule::k1F1B;
}

std::string config_json(const CaseModel& model) {
  if (model.is_gpt2) {
    return fmt::format(R"({{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
                       "n_embd": {}, "n_layer": {}, "n_head": {}, "n_inner": {}, "n_positions": 64,
                       "vocab_size": {}, "tie_word_embeddings": {}}})",
                       model.width, model.blocks, model.heads, model.intermediate, model.vocabulary,
                       model.tied);
  }
  return fmt::format(R"({{"model_type": "llama", "architectures": ["LlamaForCausalLM"],
                     "hidden_size": {}, "num_hidden_layers": {}, "num_attention_heads": {},
                     "num_key_value_heads": {}, "intermediate_size": {}, "vocab_size": {},
                     "tie_word_embeddings": {}, "attention_bias": {}, "mlp_bias": {},
                     "max_position_embeddings": 64}})",
                     model.width, model.blocks, model.heads, model.key_value_heads,
                     model.intermediate, model.vocabulary, model.tied, model.has_biases,
                     model.has_biases);
}

StepModel pinned(StepModel model) {
  model.workspace_bytes = kWorkspaceBytes;
  return model;
}

// Throws if an order from outside cannot be a step, as an engine does.
void check_recorded(const StepModel& model, int micro_batches) {
  if (!model.tasks.empty()) check_tasks(model, micro_batches);
}

WireForm wire_of(CaseWire wire) {
  switch (wire) {
    case CaseWire::kPlain:
      return WireForm::kPlain;
    case CaseWire::kInt8:
      return WireForm::kInt8;
    case CaseWire::kInt4:
      return WireForm::kInt4;
  }
  TERRACE_CHECK(false);
  return WireForm::kPlain;
}

StepModel model_of(const ProgramCase& which) {
  const CaseRanks& ranks = which.ranks;
  ModelRuntimeOptions options;
  options.model = parse_model_config(config_json(which.model), "case");
  options.model.trainable = which.trainable;
  options.batch = {which.model.sequences, which.model.positions};
  // Loss scales are for GPUs. Their type is as large as bf16.
  const bool scales_loss = which.type == CaseType::kFp16;
  options.compute_type = scales_loss ? DType::kBF16 : type_of(which.type);
  options.gradient_type = which.has_bf16_gradients ? DType::kBF16 : DType::kF32;
  options.optimizer.slot_form = moments_of(which.moments);
  options.optimizer.splits_bf16_masters = which.splits_masters;
  options.placement.micro_batches = which.micro_batches;
  options.chunk_elements = which.chunk_blocks * kBlockElements;
  options.zero_stage = ranks.zero;
  options.ranks.shape = {ranks.data, ranks.tensor, ranks.stages, ranks.islands};
  if (ranks.islands > 1) {
    options.zero_partition = ranks.is_hsdp ? ZeroPartition::kHsdp : ZeroPartition::kHpz;
  }
  options.measures_gradient_noise = which.measures_noise;
  options.wire = {.gradients = wire_of(which.gradient_wire),
                  .parameters = wire_of(which.parameter_wire),
                  .keeps_errors = which.keeps_errors};
  options.ranks.position = {ranks.data_rank, ranks.tensor_rank, ranks.stage};
  options.sequence_parallel = ranks.shares_rows;
  options.pipeline_schedule = schedule_of(ranks.schedule);
  options.virtual_stages = ranks.pieces;
  options.threads = 1;
  StepModel model = pinned(step_model_of(options));
  model.compute_type = type_of(which.type);
  model.scales_loss = scales_loss;
  model.updates_meet_on_host = which.updates_meet_on_host;
  for (const CaseTask& task : which.tasks) {
    const UnitPass pass = task.is_backward ? UnitPass::kBackward : UnitPass::kForward;
    model.tasks.push_back({pass, task.unit, task.micro_batch});
  }
  check_recorded(model, which.micro_batches);
  return model;
}

StepPolicy policy_of(const ProgramCase& which, const StepModel& model) {
  StepPolicy policy;
  policy.micro_batches = which.micro_batches;
  policy.order =
      which.layer_major ? MicroBatchOrder::kLayerMajor : MicroBatchOrder::kMicroBatchMajor;
  policy.unified = which.unified;
  policy.reduces_micro_batches = which.reduces_micro_batches;
  policy.updates_wait_for_norm = which.waits_for_norm;
  policy.pipeline_schedule = schedule_of(which.ranks.schedule);
  policy.lookahead = which.lookahead;
  for (const CaseHomes& homes : which.homes) {
    policy.homes.push_back({.parameters = tier_of(homes.parameters),
                            .gradients = tier_of(homes.gradients),
                            .optimizer = tier_of(homes.optimizer),
                            .errors = tier_of(homes.errors),
                            .streams_update = homes.streams_update});
    policy.activations.push_back({.home = tier_of(homes.activations),
                                  .recompute = homes.recompute,
                                  .is_named = homes.names_activations});
  }
  policy.homes.front().keeps_gradient = which.keeps_first_gradient;
  defer_first_updates(policy, model.groups, which.first_units);
  return policy;
}

std::size_t index_of(CaseTier tier) { return static_cast<std::size_t>(tier_of(tier)); }

TierBudgets budgets_of(const ProgramCase& which, const StepModel& model, const StepPolicy& policy) {
  TierBudgets budgets;
  if (!which.budget_percent[0] && !which.budget_percent[1]) return budgets;
  const Program loose = compile_step(model, policy, {});
  for (const CaseTier tier : {CaseTier::kDevice, CaseTier::kHost}) {
    const auto& percent = which.budget_percent.at(static_cast<std::size_t>(tier));
    if (!percent) continue;
    const std::size_t live = loose.use_of(tier_of(tier)).live_bytes;
    budgets.at(index_of(tier)) = live / 100 * static_cast<std::size_t>(*percent);
  }
  return budgets;
}

}  // namespace

Program compile_case(const ProgramCase& which) {
  const StepModel model = model_of(which);
  StepPolicy policy = policy_of(which, model);
  if (!model.tasks.empty()) policy.order = order_of_tasks(model);
  const TierBudgets budgets = budgets_of(which, model, policy);
  Program training = compile_step(model, policy, budgets);
  if (!which.is_evaluation) return training;
  policy.has_backward = false;
  return compile_step(model, policy, budgets, &training);
}

std::vector<std::string> problems_of(const Program& program) { return verify(program); }

Program compile_plan(const PlanCase& which) {
  ModelRuntimeOptions options;
  options.model = load_model_config(which.preset);
  options.batch = {1, which.positions};
  options.compute_type = which.is_fp32 ? DType::kF32 : DType::kBF16;
  options.placement.micro_batches = which.micro_batches;
  options.zero_stage = which.zero;
  options.ranks.shape = {.data = which.data, .tensor = 1, .pipeline = which.stages};
  options.threads = 1;
  PlacementRequest request = options.placement;
  request.unified = which.unified;
  request.has_nvme = which.has_drive;
  request.updates_wait_for_norm = which.clips;
  if (which.has_gpu) request.gpu = {.update_threads = 8, .link_bytes_per_s = 20e9};
  TierBudgets budgets;
  for (const CaseTier tier : {CaseTier::kDevice, CaseTier::kHost}) {
    const auto& mib = which.budget_mib.at(static_cast<std::size_t>(tier));
    if (mib) budgets.at(index_of(tier)) = static_cast<std::size_t>(*mib) * kMiB;
  }
  return plan_step(pinned(step_model_of(options)), request, budgets).program;
}

}  // namespace terrace
