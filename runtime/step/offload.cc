#include "runtime/step/offload.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "base/check.h"
#include "runtime/step/homes.h"

namespace terrace {
namespace {

// Activations that are needed again within so many stages stay where they are: bytes on their way
// out would only come back.
constexpr std::int32_t kShortGap = 2;

class Lowering {
 public:
  Lowering(const StepModel& model, const StepPolicy& policy, const std::vector<Stage>& stages,
           const FetchPlan& plan)
      : model_(model),
        policy_(policy),
        stages_(stages),
        plan_(plan),
        compute_(policy.compute_tier()),
        shared_(add_shared_buffers(draft_, model, policy)),
        parameters_(parameter_homes(draft_, model, policy)),
        uses_(parameter_uses(model, stages)),
        instances_(model.unit_count()),
        hidden_(model.unit_count() * policy.micro_batches),
        hidden_gradient_(hidden_.size(), kNoBuffer),
        saved_(hidden_.size()),
        gradient_(model.unit_count(), kNoBuffer),
        sum_(model.unit_count(), kNoBuffer),
        finished_at_(model.unit_count(), -1),
        updated_at_(model.unit_count(), -1) {
    draft_.compute_tier = compute_;
    if (policy.has_backward) {
      state_.emplace(optimizer_homes(draft_, model, policy));
      gradients_.emplace(gradient_homes(draft_, model, policy));
    }
    for (std::int32_t s = 0; s < static_cast<std::int32_t>(stages.size()); ++s) {
      const Stage& stage = stages[s];
      stage_of_[{stage.kind, stage.unit, stage.micro_batch}] = s;
    }
  }

  Draft run() {
    for (stage_ = 0; stage_ < static_cast<std::int32_t>(stages_.size()); ++stage_) {
      lower(stages_[stage_]);
    }
    return std::move(draft_);
  }

 private:
  // An activation: in memory, or in its home on the way back.
  struct Activation {
    BufferId memory = kNoBuffer;
    std::optional<Range> away;
    std::int32_t away_since = 0;
  };
  struct Instance {
    BufferId buffer = kNoBuffer;
    std::size_t use = 0;  // index in uses_
  };

  void lower(const Stage& stage) {
    switch (stage.kind) {
      case OpKind::kInput:
        return input();
      case OpKind::kForward:
      case OpKind::kRecompute:
        return forward(stage);
      case OpKind::kHead:
        return head(stage);
      case OpKind::kBackward:
        return backward(stage);
      case OpKind::kEmbeddingBackward:
        return embedding_backward();
      case OpKind::kStepScalars:
        return step_scalars();
      case OpKind::kNormFinish:
        return norm_finish();
      case OpKind::kUpdate:
        return update(stage);
      default:
        TERRACE_CHECK(false);
    }
  }

  // --- compute -----------------------------------------------------------------------------------

  void input() {
    Op op{.kind = OpKind::kInput, .lane = policy_.unified ? Lane::kCompute : Lane::kUpload};
    op.writes = {as(Role::kTokens, draft_.whole(shared_.tokens))};
    op.account = Account::kWorkspace;
    if (!policy_.unified) op.cost.bytes = static_cast<double>(op.writes[0].size_bytes);
    main_op(std::move(op), Stage{});
  }

  void forward(const Stage& stage) {
    const bool again = stage.kind == OpKind::kRecompute;
    Op op = compute_op(stage);
    op.reads.push_back(as(Role::kParameters, parameters_for(stage.unit)));
    if (stage.unit == 0) {
      op.reads.push_back(as(Role::kTokens, tokens_of(stage.micro_batch)));
    } else {
      op.reads.push_back(as(Role::kHidden, hidden_for(stage.unit - 1, stage.micro_batch)));
    }
    if (!again) {
      hidden(stage.unit, stage.micro_batch).memory = activation_buffer("hidden", stage);
      op.writes.push_back(
          as(Role::kHiddenOut, draft_.whole(hidden(stage.unit, stage.micro_batch).memory)));
    }
    if (model_.units.at(stage.unit).saved_bytes != 0) {
      saved(stage.unit, stage.micro_batch).memory = activation_buffer("saved", stage);
      op.writes.push_back(
          as(Role::kSaved, draft_.whole(saved(stage.unit, stage.micro_batch).memory)));
    }
    op.cost.flops = model_.units.at(stage.unit).forward_flops;
    main_op(std::move(op), stage);
    if (again || !policy_.has_backward || stage.unit == 0) return;
    const Tier home = home_of_activations(stage.unit);
    send_away(hidden(stage.unit - 1, stage.micro_batch), home, stage);
    if (!policy_.homes.at(stage.unit).recompute) {
      send_away(saved(stage.unit, stage.micro_batch), home, stage);
    }
  }

  void head(const Stage& stage) {
    const std::int32_t below = stage.unit - 1;
    Op op = compute_op(stage);
    op.reads.push_back(as(Role::kParameters, parameters_for(stage.unit)));
    if (model_.tied) op.reads.push_back(as(Role::kTiedParameters, parameters_for(0)));
    op.reads.push_back(as(Role::kHidden, hidden_for(below, stage.micro_batch)));
    op.reads.push_back(as(Role::kTokens, tokens_of(stage.micro_batch)));
    op.writes.push_back(Access{Role::kLosses, shared_.losses,
                               sizeof(double) * static_cast<std::size_t>(stage.micro_batch),
                               sizeof(double)});
    op.cost.flops = model_.units.at(stage.unit).backward_flops;
    if (policy_.has_backward) {
      hidden_gradient(below, stage.micro_batch) = activation_buffer("hidden grad", stage, below);
      op.writes.push_back(
          as(Role::kHiddenGradientOut, draft_.whole(hidden_gradient(below, stage.micro_batch))));
      add_gradient(op, Role::kGradient, stage.unit, stage.micro_batch);
      if (model_.tied) add_gradient(op, Role::kTiedGradient, 0, stage.micro_batch);
    }
    main_op(std::move(op), stage);
    if (policy_.has_backward) settle_gradient(stage.unit, stage.micro_batch);
    if (stage.micro_batch == policy_.micro_batches - 1) losses_to_host();
  }

  void losses_to_host() {
    if (policy_.unified) return;
    Mover mover = Mover::store(draft_, stage_, labels(Stage{}, Account::kWorkspace));
    mover.copy(draft_.whole(shared_.losses), draft_.whole(shared_.losses_host));
  }

  void backward(const Stage& stage) {
    Op op = compute_op(stage);
    op.reads.push_back(as(Role::kParameters, parameters_for(stage.unit)));
    op.reads.push_back(as(Role::kHidden, hidden_for(stage.unit - 1, stage.micro_batch)));
    op.reads.push_back(as(Role::kSaved, brought_back(saved(stage.unit, stage.micro_batch), stage)));
    op.reads.push_back(
        as(Role::kHiddenGradient, draft_.whole(hidden_gradient(stage.unit, stage.micro_batch))));
    BufferId& out = hidden_gradient(stage.unit - 1, stage.micro_batch);
    out = activation_buffer("hidden grad", stage, stage.unit - 1);
    op.writes.push_back(as(Role::kHiddenGradientOut, draft_.whole(out)));
    add_gradient(op, Role::kGradient, stage.unit, stage.micro_batch);
    op.cost.flops = model_.units.at(stage.unit).backward_flops;
    main_op(std::move(op), stage);
    settle_gradient(stage.unit, stage.micro_batch);
  }

  void embedding_backward() {
    const Stage stage{.kind = OpKind::kEmbeddingBackward, .unit = 0};
    Op op = compute_op(stage);
    op.reads.push_back(as(Role::kTokens, draft_.whole(shared_.tokens)));
    for (std::int32_t m = 0; m < policy_.micro_batches; ++m) {
      op.reads.push_back(as(Role::kHiddenGradient, draft_.whole(hidden_gradient(0, m))));
    }
    const Range target = compute_gradient(0);
    if (model_.tied) op.reads.push_back(as(Role::kGradient, target));
    op.writes.push_back(as(Role::kGradient, target));
    op.cost.flops = model_.units.front().backward_flops;
    main_op(std::move(op), stage);
    finish_gradient(0);
  }

  Op compute_op(const Stage& stage) {
    Op op{.kind = stage.kind, .lane = Lane::kCompute};
    if (shared_.constants != kNoBuffer) {
      op.reads.push_back(as(Role::kConstants, draft_.whole(shared_.constants)));
    }
    if (shared_.workspace != kNoBuffer) {
      op.writes.push_back(as(Role::kWorkspace, draft_.whole(shared_.workspace)));
    }
    return op;
  }

  void main_op(Op op, const Stage& stage) {
    op.unit = stage.unit;
    op.micro_batch = stage.micro_batch;
    op.chunk = stage.chunk;
    op.deferred = stage.deferred;
    DraftOp draft_op;
    draft_op.op = std::move(op);
    draft_op.stage = stage_;
    draft_.ops.push_back(std::move(draft_op));
  }

  static Mover::Labels labels(const Stage& stage, Account account) {
    return {stage.unit, stage.micro_batch, stage.deferred, account};
  }

  Range tokens_of(std::int32_t micro_batch) const {
    return {shared_.tokens, model_.tokens_bytes * static_cast<std::size_t>(micro_batch),
            model_.tokens_bytes};
  }

  // --- parameters --------------------------------------------------------------------------------

  // The unit's parameters in the compute tier at this stage.
  Range parameters_for(std::int32_t unit) {
    if (parameters_.tier(unit) == compute_) return parameters_.unit(unit);
    const auto& uses = uses_.at(unit);
    const auto use =
        static_cast<std::size_t>(std::lower_bound(uses.begin(), uses.end(), stage_) - uses.begin());
    std::optional<Instance>& instance = instances_.at(unit);
    if (!instance.has_value() || (instance->use != use && !stays(unit, use))) {
      instance = Instance{load_parameters(unit), use};
    }
    instance->use = use;
    return {instance->buffer, 0, unit_bytes(unit)};
  }

  bool stays(std::int32_t unit, std::size_t use) const {
    if (plan_.stays.empty()) return uses_[unit][use] - uses_[unit][use - 1] <= 1;
    return plan_.stays[unit][use];
  }

  std::size_t unit_bytes(std::int32_t unit) const {
    return static_cast<std::size_t>(model_.units.at(unit).padded_elements) *
           model_.parameter_bytes();
  }

  BufferId load_parameters(std::int32_t unit) {
    const BufferId arrived =
        draft_.add_buffer(fmt::format("param[{}] at {}", unit, stage_), unit_bytes(unit), compute_,
                          Account::kParameters, Life::kTransient);
    const bool two_hops = compute_ == Tier::kDevice && parameters_.tier(unit) == Tier::kNvme;
    Load load = new_load(updated_at_.at(unit) + 1, unit_bytes(unit));
    load.staging_bytes = two_hops ? 2 * parameters_.chunk_bytes(unit, 0) : 0;
    load.lane = compute_ == Tier::kDevice ? Lane::kUpload : Lane::kRead;
    Mover mover = Mover::load(draft_, load, {unit, -1, false, Account::kParameters});
    for (std::int64_t c = 0; c < model_.chunks(unit); ++c) {
      const std::size_t begin =
          static_cast<std::size_t>(c * model_.chunk_elements) * model_.parameter_bytes();
      mover.copy(parameters_.chunk(unit, c), {arrived, begin, parameters_.chunk_bytes(unit, c)},
                 static_cast<std::int32_t>(c));
      mover.next_chunk();
    }
    return arrived;
  }

  Load new_load(std::int32_t earliest, std::size_t target_bytes) const {
    Load load;
    load.need_stage = stage_;
    load.earliest_stage = std::min(earliest, stage_);
    load.issue_stage =
        plan_.issue_stage.empty() ? stage_ : plan_.issue_stage.at(draft_.loads.size());
    load.target_tier = compute_;
    load.target_bytes = target_bytes;
    return load;
  }

  // --- activations -------------------------------------------------------------------------------

  Activation& hidden(std::int32_t unit, std::int32_t m) { return hidden_.at(index(unit, m)); }
  Activation& saved(std::int32_t unit, std::int32_t m) { return saved_.at(index(unit, m)); }
  BufferId& hidden_gradient(std::int32_t unit, std::int32_t m) {
    return hidden_gradient_.at(index(unit, m));
  }
  std::size_t index(std::int32_t unit, std::int32_t m) const {
    return static_cast<std::size_t>(unit * policy_.micro_batches + m);
  }

  Tier home_of_activations(std::int32_t unit) const {
    const Tier home = policy_.homes.at(unit).activations;
    return home == Tier::kDevice ? compute_ : home;
  }

  BufferId activation_buffer(const char* what, const Stage& stage, std::int32_t unit = -1) {
    const bool is_saved = what == std::string_view("saved");
    const std::size_t bytes =
        is_saved ? model_.units.at(stage.unit).saved_bytes : model_.hidden_bytes;
    return draft_.add_buffer(
        fmt::format("{}[{}] mb {}", what, unit >= 0 ? unit : stage.unit, stage.micro_batch), bytes,
        compute_, Account::kActivations, Life::kTransient);
  }

  // The stage of the backward pass that first needs what this forward stage leaves.
  std::int32_t needed_again(const Stage& stage) const {
    const bool recompute = policy_.homes.at(stage.unit).recompute;
    return stage_of_.at(
        {recompute ? OpKind::kRecompute : OpKind::kBackward, stage.unit, stage.micro_batch});
  }

  std::int32_t short_gap(std::int32_t unit) const {
    return policy_.homes.at(unit).activations_named ? 0 : kShortGap;
  }

  void send_away(Activation& activation, Tier home, const Stage& stage) {
    if (home == compute_ || needed_again(stage) - stage_ <= short_gap(stage.unit)) return;
    const Buffer memory = draft_.buffers.at(activation.memory);
    const BufferId away =
        draft_.add_buffer(memory.name + " away", memory.size_bytes, home, Account::kActivations,
                          home == Tier::kNvme ? Life::kPersistent : Life::kTransient);
    Mover mover = Mover::store(draft_, stage_, labels(stage, Account::kActivations));
    mover.copy(draft_.whole(activation.memory), draft_.whole(away));
    activation = Activation{kNoBuffer, draft_.whole(away), stage_};
  }

  Range brought_back(Activation& activation, const Stage& stage) {
    if (activation.away.has_value()) {
      const Range away = *activation.away;
      const BufferId back =
          draft_.add_buffer(draft_.buffers.at(away.buffer).name + " and back", away.size_bytes,
                            compute_, Account::kActivations, Life::kTransient);
      Load load = new_load(activation.away_since + 1, away.size_bytes);
      load.lane = compute_ == Tier::kDevice ? Lane::kUpload : Lane::kRead;
      const bool two_hops = compute_ == Tier::kDevice && draft_.tier_of(away) == Tier::kNvme;
      load.staging_bytes = two_hops ? away.size_bytes : 0;
      Mover mover = Mover::load(draft_, load, labels(stage, Account::kActivations));
      mover.copy(away, draft_.whole(back));
      activation = Activation{back, std::nullopt, 0};
    }
    return draft_.whole(activation.memory);
  }

  Range hidden_for(std::int32_t unit, std::int32_t micro_batch) {
    return brought_back(hidden(unit, micro_batch), stages_.at(stage_));
  }

  // --- gradients ---------------------------------------------------------------------------------

  // Micro-batch-major sums of a unit whose gradient lives off the device are kept on the host. The
  // tied embedding's is unfinished from the head to its own backward, and stays in the compute
  // tier.
  bool sums_on_host(std::int32_t unit) const {
    return unit != 0 && !policy_.unified && policy_.micro_batches > 1 &&
           policy_.order == MicroBatchOrder::kMicroBatchMajor &&
           gradients_->tier(unit) != Tier::kDevice;
  }

  std::size_t gradient_bytes(std::int32_t unit) const {
    return static_cast<std::size_t>(model_.units.at(unit).padded_elements) * sizeof(float);
  }

  // The gradient's buffer in the compute tier, made where there is none.
  Range compute_gradient(std::int32_t unit) {
    if (gradients_->tier(unit) == compute_) return gradients_->unit(unit);
    if (gradient_.at(unit) == kNoBuffer) {
      gradient_.at(unit) =
          draft_.add_buffer(fmt::format("grad[{}] at {}", unit, stage_), gradient_bytes(unit),
                            compute_, Account::kGradients, Life::kTransient);
    }
    return {gradient_.at(unit), 0, gradient_bytes(unit)};
  }

  // An op that adds to its gradient reads it too; one that assigns it does not.
  void add_gradient(Op& op, Role role, std::int32_t unit, std::int32_t micro_batch) {
    if (sums_on_host(unit)) gradient_.at(unit) = kNoBuffer;
    const Range target = compute_gradient(unit);
    if (micro_batch > 0 && !sums_on_host(unit)) op.reads.push_back(as(role, target));
    op.writes.push_back(as(role, target));
  }

  // After a stage has added to a gradient: to the host's sum, and on to its home when it is
  // finished.
  void settle_gradient(std::int32_t unit, std::int32_t micro_batch) {
    const bool last = micro_batch == policy_.micro_batches - 1;
    if (!sums_on_host(unit)) {
      if (last) finish_gradient(unit);
      return;
    }
    const bool is_home = gradients_->tier(unit) == Tier::kHost;
    if (micro_batch == 0 && !is_home) {
      sum_.at(unit) = draft_.add_buffer(fmt::format("grad sum[{}]", unit), gradient_bytes(unit),
                                        Tier::kHost, Account::kGradients, Life::kTransient);
    }
    Mover mover = Mover::store(draft_, stage_, {unit, micro_batch, false, Account::kGradients});
    for (std::int64_t c = 0; c < model_.chunks(unit); ++c, mover.next_chunk()) {
      const Range part = compute_gradient_chunk(unit, c);
      const Range sum =
          is_home ? gradients_->chunk(unit, c) : Range{sum_.at(unit), part.offset, part.size_bytes};
      if (micro_batch == 0) {
        mover.copy(part, sum, static_cast<std::int32_t>(c));
      } else {
        accumulate_on_host(mover, part, sum, c);
      }
      if (!last) continue;
      add_norm_partials(mover, unit, c, sum);
      if (!is_home) mover.copy(sum, gradients_->chunk(unit, c), static_cast<std::int32_t>(c));
    }
    if (last) finished_at_.at(unit) = stage_;
  }

  void accumulate_on_host(Mover& mover, const Range& part, const Range& sum, std::int64_t chunk) {
    const Range arrived = mover.bring(part, Tier::kHost, static_cast<std::int32_t>(chunk));
    Op op{.kind = OpKind::kAccumulate, .lane = Lane::kUpdate};
    op.chunk = static_cast<std::int32_t>(chunk);
    op.reads = {as(Role::kSource, arrived), as(Role::kTarget, sum)};
    op.writes = {as(Role::kTarget, sum)};
    op.cost.bytes = 3.0 * static_cast<double>(sum.size_bytes);
    mover.add(std::move(op));
  }

  Range compute_gradient_chunk(std::int32_t unit, std::int64_t chunk) {
    const auto begin = static_cast<std::size_t>(chunk * model_.chunk_elements) * sizeof(float);
    const Range whole = compute_gradient(unit);
    return {whole.buffer, whole.offset + begin, gradients_->chunk_bytes(unit, chunk)};
  }

  // The whole gradient of the step is in the compute tier: take its norm and send it home.
  void finish_gradient(std::int32_t unit) {
    const Tier home = gradients_->tier(unit);
    Mover mover = Mover::store(draft_, stage_, {unit, -1, false, Account::kGradients});
    for (std::int64_t c = 0; c < model_.chunks(unit); ++c, mover.next_chunk()) {
      const Range part = compute_gradient_chunk(unit, c);
      const auto chunk = static_cast<std::int32_t>(c);
      if (home == compute_) {
        add_norm_partials(mover, unit, c, part);
      } else if (home == Tier::kHost) {
        const Range target = gradients_->chunk(unit, c);
        mover.copy(part, target, chunk);
        add_norm_partials(mover, unit, c, target);
      } else {
        const Range on_host = mover.bring(part, Tier::kHost, chunk);
        add_norm_partials(mover, unit, c, on_host);
        mover.copy(on_host, gradients_->chunk(unit, c), chunk);
      }
    }
    gradient_.at(unit) = kNoBuffer;
    finished_at_.at(unit) = stage_;
  }

  // Where the gradient is: on the update lane in host memory, on the compute lane on the device.
  void add_norm_partials(Mover& mover, std::int32_t unit, std::int64_t chunk, const Range& part) {
    const bool on_device = draft_.tier_of(part) == Tier::kDevice;
    const std::int64_t first =
        model_.first_partial(unit) + chunk * (model_.chunk_elements / kBlockElements);
    const std::int64_t count = model_.chunk_size(unit, chunk) / kBlockElements;
    const std::size_t begin = static_cast<std::size_t>(first) * sizeof(double);
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(double);
    const Range partials{on_device ? shared_.partials_device : shared_.partials, begin, bytes};
    Op op{.kind = OpKind::kNormPartials, .lane = on_device ? Lane::kCompute : Lane::kUpdate};
    op.chunk = static_cast<std::int32_t>(chunk);
    op.reads = {as(Role::kGradient, part)};
    op.writes = {as(Role::kPartials, partials)};
    op.cost.bytes = static_cast<double>(part.size_bytes);
    mover.add(std::move(op));
    if (on_device) mover.copy(partials, {shared_.partials, begin, bytes});
  }

  void norm_finish() {
    Op op{.kind = OpKind::kNormFinish, .lane = Lane::kUpdate};
    op.reads = {as(Role::kPartials, draft_.whole(shared_.partials)),
                as(Role::kLosses, draft_.whole(shared_.losses_host))};
    if (policy_.updates_wait_for_norm) {
      op.writes = {as(Role::kScalars, draft_.whole(shared_.scalars))};
    }
    main_op(std::move(op), Stage{});
    if (policy_.updates_wait_for_norm) scalars_to_device();
  }

  void step_scalars() {
    Op op{.kind = OpKind::kStepScalars, .lane = Lane::kUpdate};
    op.writes = {as(Role::kScalars, draft_.whole(shared_.scalars))};
    main_op(std::move(op), Stage{});
    scalars_to_device();
  }

  void scalars_to_device() {
    if (shared_.scalars_device == kNoBuffer) return;
    Mover mover = Mover::store(draft_, stage_, labels(Stage{}, Account::kWorkspace));
    mover.copy(draft_.whole(shared_.scalars), draft_.whole(shared_.scalars_device));
  }

  // --- updates -----------------------------------------------------------------------------------

  void update(const Stage& stage) {
    const std::int32_t unit = stage.unit;
    const Tier where = state_->tier(unit) == Tier::kDevice ? Tier::kDevice : Tier::kHost;
    const Range parameter_home = parameters_.chunk(unit, stage.chunk);
    const Range gradient = brought(stage, gradients_->chunk(unit, stage.chunk), where,
                                   Account::kGradients, finished_at_.at(unit) + 1);
    const Range state_home = state_->chunk(unit, stage.chunk);
    const Range state = brought(stage, state_home, where, Account::kOptimizerState);
    const Range parameter = updated_parameter(stage, parameter_home, where);

    Op op{.kind = OpKind::kUpdate, .lane = where == Tier::kDevice ? Lane::kCompute : Lane::kUpdate};
    const BufferId scalars = where == Tier::kDevice ? shared_.scalars_device : shared_.scalars;
    op.reads = {as(Role::kScalars, draft_.whole(scalars)), as(Role::kGradient, gradient),
                as(Role::kState, state)};
    const bool reads_parameter = model_.state_format.reads_parameter();
    if (reads_parameter) op.reads.push_back(as(Role::kParameters, parameter));
    op.writes = {as(Role::kState, state), as(Role::kParameters, parameter)};
    op.cost.bytes = static_cast<double>(gradient.size_bytes + 2 * state.size_bytes +
                                        (reads_parameter ? 2 : 1) * parameter.size_bytes);
    main_op(std::move(op), stage);

    store_back(stage, state, state_home, Account::kOptimizerState);
    store_back(stage, parameter, parameter_home, Account::kParameters);
    updated_at_.at(unit) = stage_;
  }

  Range brought(const Stage& stage, const Range& home, Tier where, Account account,
                std::int32_t earliest = 0) {
    if (draft_.tier_of(home) == where) return home;
    Load load = new_load(earliest, home.size_bytes);
    load.target_tier = where;
    load.lane = where == Tier::kDevice
                    ? Lane::kUpload
                    : (draft_.tier_of(home) == Tier::kNvme ? Lane::kRead : Lane::kDownload);
    const bool two_hops = where == Tier::kDevice && draft_.tier_of(home) == Tier::kNvme;
    load.staging_bytes = two_hops ? home.size_bytes : 0;
    Mover mover = Mover::load(draft_, load, labels(stage, account));
    return mover.bring(home, where, stage.chunk);
  }

  // Where the update writes the parameters: their home if it is in the same memory. They are
  // brought there first where the update reads them.
  Range updated_parameter(const Stage& stage, const Range& home, Tier where) {
    if (draft_.tier_of(home) == where) return home;
    if (where == compute_ && just_used(stage)) {
      return {instances_.at(stage.unit)->buffer, offset_in_unit(stage), home.size_bytes};
    }
    if (model_.state_format.reads_parameter()) {
      return brought(stage, home, where, Account::kParameters);
    }
    const BufferId fresh =
        draft_.add_buffer(fmt::format("param[{}].{} updated", stage.unit, stage.chunk),
                          home.size_bytes, where, Account::kStaging, Life::kTransient);
    return {fresh, 0, home.size_bytes};
  }

  // Whether the unit's parameters were fetched for the stage right before its update.
  bool just_used(const Stage& stage) const {
    const std::optional<Instance>& instance = instances_.at(stage.unit);
    return instance.has_value() &&
           uses_.at(stage.unit).at(instance->use) == stage_ - 1 - stage.chunk;
  }

  std::size_t offset_in_unit(const Stage& stage) const {
    return static_cast<std::size_t>(stage.chunk * model_.chunk_elements) * model_.parameter_bytes();
  }

  void store_back(const Stage& stage, const Range& range, const Range& home, Account account) {
    if (range.buffer == home.buffer) return;
    Mover mover = Mover::store(draft_, stage_, labels(stage, account));
    mover.copy(range, home, stage.chunk);
  }

  const StepModel& model_;
  const StepPolicy& policy_;
  const std::vector<Stage>& stages_;
  const FetchPlan& plan_;
  Tier compute_;
  Draft draft_;
  SharedBuffers shared_;
  Homes parameters_;
  std::optional<Homes> state_;
  std::optional<Homes> gradients_;
  std::vector<std::vector<std::int32_t>> uses_;
  std::map<std::tuple<OpKind, std::int32_t, std::int32_t>, std::int32_t> stage_of_;

  std::int32_t stage_ = 0;
  std::vector<std::optional<Instance>> instances_;
  std::vector<Activation> hidden_;
  std::vector<BufferId> hidden_gradient_;
  std::vector<Activation> saved_;
  std::vector<BufferId> gradient_;  // of the unit in the compute tier, while it is not home
  std::vector<BufferId> sum_;       // on the host, of units that go on to NVMe
  // Stages of this list, -1 before them.
  std::vector<std::int32_t> finished_at_;  // the unit's gradient
  std::vector<std::int32_t> updated_at_;
};

}  // namespace

Draft add_movement(const StepModel& model, const StepPolicy& policy,
                   const std::vector<Stage>& stages, const FetchPlan& plan) {
  return Lowering(model, policy, stages, plan).run();
}

}  // namespace terrace
