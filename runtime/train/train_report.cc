#include "runtime/train/train_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "base/bytes.h"
#include "kernels/wire_ops.h"
#include "runtime/model/adapter_targets.h"
#include "runtime/train/evaluation.h"
#include "runtime/train/rank_limits.h"
#include "runtime/train/rank_waits.h"

namespace terrace {
namespace {

constexpr Lane kLinks[] = {Lane::kUpload,     Lane::kDownload, Lane::kRead,        Lane::kWrite,
                           Lane::kCollective, Lane::kIsland,   Lane::kInterIsland, Lane::kTensor,
                           Lane::kSend,       Lane::kSendBack};

// Returns the word for the things whose homes are counted. Most units have one group.
std::string_view homes_are_of(const StepModel& model, StateUse use) {
  const bool has_more = model.group_count() > static_cast<std::int32_t>(model.unit_count());
  return has_more && use != StateUse::kMicroBatch ? "groups" : "units";
}

std::string count_homes(std::span<const Tier> homes, StateClass state, std::string_view of) {
  std::array<int, kTierCount> counts{};
  for (const Tier home : homes) ++counts.at(static_cast<std::size_t>(home));
  std::string text = fmt::format("  {:<16}", info_of(state).name);
  for (const Tier tier : kTiers) {
    const int count = counts.at(static_cast<std::size_t>(tier));
    if (count != 0) text += fmt::format(" {} {} on {}", count, of, name_of(tier));
  }
  return text + '\n';
}

// Returns what becomes of the activations of this stage's blocks. An embedding and a head keep
// none, so there is nothing to place or recompute.
std::vector<UnitActivations> activations_of_blocks(const StepModel& model,
                                                   const StepPolicy& policy) {
  std::vector<UnitActivations> blocks;
  for (std::int32_t u = 0; u <= model.last_unit(); ++u) {
    const bool is_block = !model.joins_micro_batches(u) && !model.fuses_passes(u);
    if (is_block && model.has_unit(u)) {
      blocks.push_back(policy.activations.at(static_cast<std::size_t>(u)));
    }
  }
  return blocks;
}

// Returns whether a state is the errors of coded gradients, and this run keeps them.
bool is_of_codes(const StepModel& model, const StateClassInfo& info) {
  return info.use == StateUse::kReduce && model.keeps_errors();
}

// Returns where a state of this stage's units lives, as far as they have it.
std::vector<Tier> homes_of(const StepModel& model, const StepPolicy& policy,
                           const StateClassInfo& info) {
  std::vector<Tier> homes;
  if (info.use == StateUse::kMicroBatch) {
    for (const UnitActivations& unit : activations_of_blocks(model, policy)) {
      homes.push_back(unit.home);
    }
    return homes;
  }
  for (std::int32_t g = 0; g < model.group_count(); ++g) {
    const bool has_state = info.use == StateUse::kEveryPass || model.group_trains(g);
    if (!model.owns(g) || !has_state) continue;
    homes.push_back(info.state == StateClass::kGradients ? policy.gradient_home(g)
                                                         : policy.home(info.state, g));
  }
  return homes;
}

// Describes where the updates of this stage's units run.
std::string count_updates(const StepModel& model, const StepPolicy& policy) {
  int on_device = 0;
  int streamed = 0;
  int on_host = 0;
  for (std::int32_t g = 0; g < model.group_count(); ++g) {
    if (!model.owns(g) || !model.group_trains(g)) continue;
    ++(policy.update_tier(g) == Tier::kDevice ? on_device : on_host);
    if (policy.streams_update(g)) ++streamed;
  }
  std::string text = fmt::format("  {:<16}", "updates");
  const std::string_view of = homes_are_of(model, StateUse::kUpdate);
  if (on_device != 0) text += fmt::format(" {} {} on device", on_device, of);
  if (streamed != 0) text += fmt::format(", the state of {} streamed through it", streamed);
  if (on_host != 0) text += fmt::format("{} {} {} on host", on_device != 0 ? "," : "", on_host, of);
  return text + '\n';
}

// Describes how many bytes each state takes per trained parameter on a rank between steps, without
// padding. All groups of a decoder store their states in the same form.
std::string describe_state(const StepModel& model) {
  const StateLayout state = model.state_format.layout(kBlockElements);
  const auto per_parameter = [&](StateClass of, std::size_t bytes_of_block) {
    return static_cast<double>(bytes_of_block) / static_cast<double>(kBlockElements) /
           model.zero.parts(of);
  };
  std::size_t slot_bytes = 0;  // without the bytes that round the state up
  for (std::size_t slot = 0; slot < kMostSlots; ++slot) {
    slot_bytes += state.slots.at(slot).size_bytes + state.exponents.at(slot).size_bytes;
  }
  const double slots = per_parameter(StateClass::kOptimizer, slot_bytes);
  const double masters = per_parameter(StateClass::kOptimizer, state.master.size_bytes);
  const auto whole = [&](StateClass of) {
    return per_parameter(of, model.state_bytes(of, 0, kBlockElements));
  };
  const double parameter = whole(StateClass::kParameters);
  const double gradient = whole(StateClass::kGradients);
  double others = 0;
  std::string others_text;
  for (const StateClassInfo& info : kStateClasses) {
    const bool lasts = info.use == StateUse::kUpdate || is_of_codes(model, info);
    if (!lasts || info.state == StateClass::kOptimizer) continue;
    const double bytes =
        info.state == StateClass::kErrors
            ? per_parameter(info.state, coded_bytes(WireForm::kInt8, kBlockElements))
            : whole(info.state);
    others += bytes;
    others_text += fmt::format(", {:.4g} {}", bytes, info.name);
  }
  std::string text = fmt::format(
      "training state: {:.4g} bytes per parameter: {:.4g} parameter, {:.4g} gradient, {:.4g} "
      "moments",
      parameter + gradient + slots + masters + others, parameter, gradient, slots);
  if (model.state_format.master == MasterForm::kFp32) {
    text += fmt::format(", {:.4g} fp32 master", masters);
  } else if (model.state_format.master == MasterForm::kSplit) {
    text += fmt::format(", {:.4g} rest of the fp32 master", masters);
  }
  return text + others_text + '\n';
}

std::string describe_ranks(const ModelRuntimeOptions& options, const StepModel& model) {
  if (model.ranks() == 1) return "";
  std::vector<std::string> parts;
  if (model.zero.ranks > 1) {
    parts.push_back(
        fmt::format("{} data-parallel ranks, ZeRO stage {}", model.zero.ranks, model.zero.stage));
  }
  if (model.zero.islands > 1) {
    const bool is_hpz = model.zero.partition == ZeroPartition::kHpz;
    parts.push_back(fmt::format("{} sharded in each of {} islands of {} ranks",
                                is_hpz ? "parameters" : "all states", model.zero.islands,
                                model.zero.island_ranks()));
  }
  if (model.tensor.ranks > 1) {
    parts.push_back(fmt::format("{} tensor-parallel ranks{}", model.tensor.ranks,
                                model.tensor.shares_rows ? " with sequence parallelism" : ""));
  }
  const PipelineCut& cut = model.pipeline;
  if (cut.stages == 1)
    return fmt::format("{}; the figures below are for {} rank\n", fmt::join(parts, ", "),
                       has_own_limits(options) ? "the first" : "each");
  const std::vector<std::int32_t> firsts(cut.piece_begins.begin(), cut.piece_begins.end() - 1);
  const std::string pieces =
      cut.virtual_stages > 1 ? fmt::format(" of {} pieces each", cut.virtual_stages) : "";
  parts.push_back(fmt::format("{} pipeline stages{}, from units {} on", cut.stages, pieces,
                              fmt::join(firsts, ", ")));
  return fmt::format("{}; the figures below are for a rank of stage {}\n", fmt::join(parts, ", "),
                     cut.stage);
}

std::string describe_evaluation(const Dataset& data, const UsedData& use) {
  if (data.validation_samples() == 0) return "no evaluation";
  std::int64_t samples = 0;
  std::string sets;
  for (std::size_t set = 0; set < data.validation_sets(); ++set) {
    const std::int64_t evaluated = use.evaluated_samples.at(set);
    const std::string& name = data.validation_name(set);
    samples += evaluated;
    sets += fmt::format("{}{} of {} samples{}", set == 0 ? "" : ", ", evaluated,
                        data.validation_samples(set), name.empty() ? "" : " of " + name);
  }
  const double steps = static_cast<double>(samples) /
                       static_cast<double>(kForwardsOfTraining * use.samples_per_step);
  const std::string when =
      use.evaluated_every == 0
          ? std::string("after the last step")
          : fmt::format("every {} steps and after the last", use.evaluated_every);
  return fmt::format("evaluation, {}: {}, as much computation as {:.3g} steps (--eval-samples)",
                     when, sets, steps);
}

// Returns nothing where all parameters train.
std::string describe_trainable(const ModelConfig& model) {
  std::int64_t tensors = 0;
  std::int64_t trained = 0;
  std::int64_t elements = 0;
  for (const UnitLayout& unit : parameter_layout(model)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      ++tensors;
      if (!tensor.trainable) continue;
      ++trained;
      elements += tensor.elements();
    }
  }
  if (trained == tensors) return "";
  return fmt::format(
      "{}trainable: {} parameters, {} of {} tensors; the others are frozen\n",
      model.adapter.is_there() ? fmt::format("adapter: {}\n", words_of(model.adapter)) : "",
      elements, trained, tensors);
}

// Says how the experts of a layer are grouped; empty for a model without experts.
std::string describe_experts(const ModelRuntimeOptions& options) {
  const std::int64_t experts = options.model.experts.count;
  if (experts == 0) return "";
  const bool has_adapter = options.model.adapter.is_there();
  return fmt::format("experts: {} in a layer, {} in groups of {}\n", experts,
                     has_adapter ? "frozen like the router, moved" : "moved and updated",
                     experts_per_group_of(options));
}

// Returns nothing where all parameters are in the type that computes.
std::string describe_quantization(const ModelRuntimeOptions& options) {
  if (!options.base_quantization) return "";
  const bool is_nf4 = *options.base_quantization == QuantizedForm::kNf4;
  return fmt::format("base: matrices of the blocks in {}, computed in {}\n",
                     is_nf4 ? "nf4" : "int8", name_of(options.compute_type));
}

// Returns how many ops a program has. A repeated op stands for as many as it is done times.
std::string describe_ops(const Program& program) {
  const Repetition& repetition = program.repetition;
  if (repetition.times == 1) return fmt::format("{} ops", program.ops.size());
  return fmt::format("{} ops, {} of them done {} times in a row", program.ops.size(),
                     repetition.end - repetition.begin, repetition.times);
}

// Returns the bytes that each link carries in a step, if it carries any.
std::string describe_links(const Program& program) {
  std::string text;
  for (const Lane lane : kLinks) {
    const double bytes = lane_bytes(program, lane);
    if (bytes == 0) continue;
    text += fmt::format("  {} {}", name_of(lane), format_size(static_cast<std::size_t>(bytes)));
  }
  return text.empty() ? "  none over any link" : text;
}

// Returns the program as the user has typed it.
std::string program_of(const TrainCommand& command) {
  return command.command_line.empty() ? "terrace" : command.command_line.front();
}

const char* by_rank(int ranks) { return ranks > 1 ? " by this rank" : ""; }

}  // namespace

std::string describe_wire(const WireForms& wire) {
  std::vector<std::string> parts;
  if (wire.gradients != WireForm::kPlain) {
    parts.push_back(fmt::format("gradients as {} codes{}", name_of(wire.gradients),
                                wire.keeps_errors ? " with error feedback" : ""));
  }
  if (wire.parameters != WireForm::kPlain) {
    parts.push_back(fmt::format("parameters as {} codes", name_of(wire.parameters)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string describe_plan(const ModelRuntimeOptions& options, const TierPlan& plan) {
  const StepPolicy& policy = plan.training.policy;
  const Program& program = plan.training.program;
  const std::vector<UnitActivations> blocks = activations_of_blocks(plan.model, policy);
  const auto recomputed = std::ranges::count(blocks, true, &UnitActivations::recompute);
  std::string text = fmt::format(
      "{}: {} parameters in {} units, {}\n"
      "a step: {} micro-batch{} of {} x {} tokens, {}\n"
      "program: {}, {} buffers, about {} beside the budgets, {} of {} blocks recomputed, "
      "lookahead {}\n",
      options.model.name, parameter_count(parameter_layout(options.model)), plan.model.unit_count(),
      name_of(options.compute_type), policy.micro_batches, policy.micro_batches == 1 ? "" : "es",
      options.batch.sequences, options.batch.positions,
      policy.order == MicroBatchOrder::kLayerMajor ? "layer-major" : "micro-batch-major",
      describe_ops(program), program.buffers.size(),
      format_size(memory_of_plan(plan).beside_budgets()), recomputed, blocks.size(),
      policy.lookahead);
  text += describe_trainable(options.model);
  text += describe_quantization(options);
  text += describe_experts(options);
  text += describe_ranks(options, plan.model);
  if (plan.model.zero.ranks > 1 && !plan.model.wire.are_plain()) {
    text += fmt::format("sent between data-parallel ranks: {}\n", describe_wire(plan.model.wire));
  }
  text += describe_state(plan.model);
  text += "homes between uses, and where updates run:\n";
  for (const StateClassInfo& info : kStateClasses) {
    if (info.use == StateUse::kReduce && !is_of_codes(plan.model, info)) continue;
    text += count_homes(homes_of(plan.model, policy, info), info.state,
                        homes_are_of(plan.model, info.use));
  }
  text += count_updates(plan.model, policy);
  text += '\n' + to_text(plan.ledger) + "\nbytes in a step:" + describe_links(program);
  const double written = lane_bytes(program, Lane::kWrite);
  if (written > 0) {
    text += fmt::format("\nwritten to the drives{}{}: {:.3f} TB in 1000 steps",
                        options.nvme.directories.size() > 1 ? " together" : "",
                        by_rank(plan.model.ranks()), written * 1e-9);
  }
  return text;
}

std::string describe_data(const Dataset& data, const UsedData& use) {
  std::int64_t validation_tokens = 0;
  for (std::size_t set = 0; set < data.validation_sets(); ++set) {
    validation_tokens += data.validation_tokens(set);
  }
  std::string text = fmt::format(
      "data: {} tokens{} to train on, {} samples; {} to validate on; {} steps go through {}{:.3g} "
      "epochs\n{}",
      data.training_tokens(), data.is_text() ? " (bytes of text)" : "", data.samples_per_epoch(),
      validation_tokens, use.total_steps, use.is_at_most ? "at most " : "",
      static_cast<double>(use.total_samples) / static_cast<double>(data.samples_per_epoch()),
      describe_evaluation(data, use));
  for (const std::string& note : data.notes()) text += "\n" + note;
  return text;
}

std::string in_shell(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string trial_command(const TrainCommand& command, const std::string& run_dir, bool chats) {
  const std::string program = in_shell(program_of(command));
  const std::string model = in_shell((std::filesystem::path(run_dir) / "final").string());
  if (chats) return fmt::format("{} chat {}", program, model);
  return fmt::format("{} sample --model {} --prompt TEXT", program, model);
}

std::string describe_stop(int signal, std::int64_t step, std::int64_t total_steps,
                          const TrainCommand& command, const std::string& run_dir) {
  const std::string config = (std::filesystem::path(run_dir) / "config.toml").string();
  const char* const name = signal == 0 ? nullptr : sigabbrev_np(signal);
  return fmt::format(
      "stopped by {} after step {} of {}; to go on: {} train --config {} --resume auto",
      name == nullptr ? std::string("a signal") : fmt::format("SIG{}", name), step, total_steps,
      in_shell(program_of(command)), in_shell(config));
}

std::string describe_asked_stop(std::int64_t step, std::int64_t total_steps,
                                const TrainCommand& command, const std::string& run_dir) {
  if (step == command.cut_after_step) {
    return fmt::format("step {} of {}: the stages of the pipeline are measured", step, total_steps);
  }
  const std::string config = (std::filesystem::path(run_dir) / "config.toml").string();
  return fmt::format(
      "stopped after step {} of {}, as --stop-after-step says; to go on: {} train --config {} "
      "--resume auto --stop-after-step 0",
      step, total_steps, in_shell(program_of(command)), in_shell(config));
}

std::string describe_store(std::span<const StorePath> paths, double written_bytes, int ranks) {
  std::uint64_t used_bytes = 0;
  for (const StorePath& path : paths) used_bytes += path.used_bytes;
  std::string text;
  for (const StorePath& path : paths) {
    text += fmt::format("\nnvme: {} by {}{}{}{}{}", path.directory, path.engine,
                        path.direct_io ? ", direct" : ", buffered",
                        path.registered_buffers ? ", registered buffers" : "",
                        path.remark.empty() ? "" : ": ", path.remark);
    if (paths.size() == 1 || used_bytes == 0) continue;
    const double share = static_cast<double>(path.used_bytes) / static_cast<double>(used_bytes);
    text += fmt::format("; {:.0f} % of the data written{}, {} a step", 100 * share, by_rank(ranks),
                        format_size(static_cast<std::size_t>(share * written_bytes)));
  }
  return text;
}

std::string describe_machine(const MachineShare& machine, const DeviceChoice& device,
                             const TierPlan& plan, std::span<const StorePath> stores) {
  const int ranks = plan.model.ranks();
  return to_text(machine.threads) + describe_gpu(machine, device, ranks) +
         describe_store(stores, lane_bytes(plan.training.program, Lane::kWrite), ranks);
}

std::string describe_resume(const CheckpointProgress& progress, const std::string& device,
                            const std::string& arithmetic) {
  const std::string text = fmt::format("resumed after step {}", progress.step);
  const auto differs = [](const std::string& before, const std::string& now) {
    return !before.empty() && before != now;
  };
  if (differs(progress.device, device)) {
    return fmt::format(
        "{}\n"
        "that step was computed with --device {}, the next one will be computed with --device {}: "
        "the results will differ in their last bits from a run that stays on one device",
        text, progress.device, device);
  }
  if (differs(progress.arithmetic, arithmetic)) {
    return fmt::format(
        "{}\n"
        "that step was computed by {}, the next one will be computed by {}: the results may differ "
        "in their last bits from a run that stays where it began",
        text, progress.arithmetic, arithmetic);
  }
  return text;
}

std::string describe_step(const StepMetrics& metrics, std::int64_t last_step) {
  std::string text = fmt::format(
      "step {:>{}}/{}  loss {:.4f}  grad_norm {:.3f}  lr {:.2e}  {:.0f} tokens/s  {:.3f} s",
      metrics.step, fmt::formatted_size("{}", last_step), last_step, metrics.loss,
      metrics.gradient_norm, metrics.learning_rate,
      metrics.step_s > 0 ? static_cast<double>(metrics.tokens) / metrics.step_s : 0.0,
      metrics.step_s);
  if (metrics.router) text += fmt::format("  router_aux_loss {:.3f}", metrics.router->balance_loss);
  if (metrics.was_skipped) {
    text += fmt::format("  skipped: gradients overflow at loss scale {}", metrics.loss_scale);
  }
  if (!metrics.validation.empty()) text += "  " + describe_losses(metrics.validation);
  return text;
}

std::string describe_losses(const std::vector<ValidationLoss>& losses) {
  std::string text;
  for (const auto& [set, loss] : losses) {
    text += fmt::format("{}{} {:.4f}", text.empty() ? "" : "  ", validation_loss_key(set), loss);
  }
  return text;
}

void TimeSummary::add(const StepMetrics& metrics) {
  ++steps_;
  seconds_ += metrics.step_s;
  tokens_ += static_cast<double>(metrics.tokens);
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    busy_s_[l] += metrics.totals.busy_s[l];
    bytes_[l] += metrics.totals.moved.lanes[l];
  }
  rank_waits_ += metrics.waits;
}

// Lists what the compute lane waited for, the longest wait first.
std::string TimeSummary::describe_waits(const StepWaits& waits) const {
  std::vector<std::pair<double, std::string_view>> causes = {
      {waits.unexplained_s(), "the start of ops and steps"}};
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    const auto lane = static_cast<Lane>(l);
    causes.emplace_back(waits.waited_s(lane), name_of(lane));
  }
  std::sort(causes.rbegin(), causes.rend());
  std::string text;
  for (const auto& [waited_s, cause] : causes) {
    if (waited_s < 0.001 * seconds_) continue;
    text += fmt::format("{} {} {:.2f} s ({:.1f} %)", text.empty() ? "" : ",", cause, waited_s,
                        100 * waited_s / seconds_);
  }
  return text.empty() ? text : "compute stalled, waiting for:" + text + '\n';
}

std::string TimeSummary::waits_json(const StepWaits& waits) const {
  if (steps_ == 0 || seconds_ <= 0) return "";
  nlohmann::ordered_json causes = {{"start", waits.unexplained_s()}};
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    const auto lane = static_cast<Lane>(l);
    if (waits.waited_s(lane) > 0) causes[std::string(name_of(lane))] = waits.waited_s(lane);
  }
  const nlohmann::ordered_json json = {
      {"steps", steps_}, {"seconds", seconds_}, {"compute_waited_s", causes}};
  return json.dump();
}

std::string TimeSummary::describe_lanes() const {
  std::string text;
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    if (busy_s_[l] <= 0) continue;
    text += fmt::format("  {:<12} busy {:>5.1f} %  {:>8.2f} s", name_of(static_cast<Lane>(l)),
                        100 * busy_s_[l] / seconds_, busy_s_[l]);
    if (bytes_[l] > 0) {
      text += fmt::format("  {:>10}  {}", format_size(static_cast<std::size_t>(bytes_[l])),
                          format_rate(bytes_[l] / busy_s_[l]));
    }
    text += '\n';
  }
  return text;
}

// Names the busiest lane as the limit, without the lanes of messages. Messages are posted ahead, so
// the busy time of their lanes only says when the other rank reached them.
std::string TimeSummary::describe_limit() const {
  Lane busiest = Lane::kCompute;
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    const auto lane = static_cast<Lane>(l);
    if (!is_message(lane) && busy_s_[l] > busy_s_[static_cast<std::size_t>(busiest)]) {
      busiest = lane;
    }
  }
  const double share = busy_s_[static_cast<std::size_t>(busiest)] / seconds_;
  return fmt::format("limited by: the {} lane, busy {:.0f} % of the time{}{}", name_of(busiest),
                     100 * share, is_between_ranks(busiest) ? " or waiting for another rank" : "",
                     share < 0.7 ? "; in the remaining time the lanes waited for each other" : "");
}

std::string TimeSummary::describe_ranks() const {
  const std::string waits = describe_rank_waits(rank_waits_.waited_for_s, seconds_);
  return waits.empty() ? "" : waits + '\n';
}

std::string TimeSummary::text(const StepWaits& waits, int ranks) const {
  if (steps_ == 0 || seconds_ <= 0) {
    return "no steps were run: --max-steps or --stop-after-step ends the run at the step it has "
           "reached; --stop-after-step 0 continues to the last step";
  }
  const bool is_alone = ranks == 1;
  std::string text = fmt::format(
      "{} steps in {:.1f} s, {:.0f} tokens/s. Where the time went{}:\n", steps_, seconds_,
      tokens_ / seconds_,
      is_alone ? ""
               : fmt::format(" (bytes and rates of {} ranks together, times of the busiest rank)",
                             ranks));
  text += describe_lanes() + describe_waits(waits) + describe_ranks();
  const double written = bytes_[static_cast<std::size_t>(Lane::kWrite)];
  if (written > 0) {
    text += fmt::format("written to the drives{}: {:.2f} TB a day at this pace\n",
                        is_alone ? "" : " by all ranks", written / seconds_ * 86400e-12);
  }
  return text + describe_limit();
}

}  // namespace terrace
