#include "runtime/engine/hash_probes.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "runtime/step/homes.h"

namespace terrace {
namespace {

constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

HashedOp hashed_op(const Op& op) {
  switch (op.kind) {
    case OpKind::kForward:
      return HashedOp::kForward;
    case OpKind::kRecompute:
      return HashedOp::kRecompute;
    case OpKind::kRoundGradient:
      return HashedOp::kRound;
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
    case OpKind::kEncode:
    case OpKind::kDecodeSum:
      return HashedOp::kReduce;
    case OpKind::kNormPartials:
      return HashedOp::kNormPartials;
    case OpKind::kNormFinish:
      return HashedOp::kNorm;
    case OpKind::kUpdate:
      return HashedOp::kUpdate;
    default:
      return HashedOp::kBackward;
  }
}

std::string unit_name(const StepModel& model, std::int32_t unit) {
  switch (model.units.at(static_cast<std::size_t>(unit)).kind) {
    case UnitKind::kEmbedding:
      return "the embedding";
    case UnitKind::kHead:
      return "the head";
    default:
      break;
  }
  const bool has_embedding = model.joins_micro_batches(0);
  return fmt::format("block {}", unit - (has_embedding ? 1 : 0));
}

}  // namespace

HashProbes::HashProbes(const HashedTraining& training)
    : training_(training),
      program_(training.bytes.program),
      model_(training.model),
      ops_(training.bytes.program.ops.size()) {
  describe_model();
  for (std::int32_t m = 0; m < program_.micro_batches; ++m) {
    HashKey& key = table_.keys.emplace_back();
    key.micro_batch = m;
    key.data_rank = training.place.data;
    key.is_output = true;
    key.value = "tokens";
  }
  note_writers();
  for (now_ = 0; now_ < ops_.size(); ++now_) add_op(program_.ops[now_]);
}

void HashProbes::describe_model() {
  table_.ranks = model_.ranks();
  HashedModel& model = table_.model;
  model.data_ranks = model_.zero.ranks;
  model.tensor_ranks = model_.tensor.ranks;
  model.shares_rows = model_.tensor.shares_rows;
  model.micro_batches = program_.micro_batches;
  model.tokens_bytes = model_.tokens_bytes;
  model.hidden_bytes = model_.hidden_bytes;
  model.chunk_elements = model_.chunk_elements;
  model.compute_type = name_of(model_.compute_type);
  model.gradient_type = name_of(model_.gradient_type);
  for (std::int32_t unit = 0; unit <= model_.last_unit(); ++unit) {
    model.units.push_back(unit_name(model_, unit));
  }
  for (const ParameterGroup& group : model_.groups) {
    model.group_elements.push_back(group.padded_elements);
    model.group_units.push_back(group.unit);
  }
}

HashProbes::Written HashProbes::written_by(const Op& op, const Access& access) {
  return {op.kind, op.unit, op.micro_batch, op.use, access.role, access.number};
}

// A buffer that several steps of a pass write is complete after the last of them.
void HashProbes::note_writers() {
  for (std::size_t op = 0; op < ops_.size(); ++op) {
    const Op& of = program_.ops[op];
    const bool is_reduce = of.kind == OpKind::kDecodeSum ||
                           (hashed_op(of) == HashedOp::kReduce && of.lane == Lane::kCollective);
    if (is_reduce) ++reduces_[{of.group, of.chunk}];
    for (const Access& write : of.writes) {
      last_writer_[written_by(of, write)] = op;
    }
  }
}

void HashProbes::add_op(const Op& op) {
  switch (op.kind) {
    case OpKind::kForward:
    case OpKind::kRecompute:
    case OpKind::kBackward:
      return add_unit_op(op);
    case OpKind::kAccumulate:
      return add_accumulate(op);
    case OpKind::kRoundGradient:
      return add_round(op);
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
      return add_reduce(op);
    case OpKind::kEncode:
      return add_encode(op);
    case OpKind::kDecodeSum:
      return add_sum_over_ranks(op);
    case OpKind::kNormPartials:
      return add_norm_partials(op);
    case OpKind::kNormFinish:
      return add_norm(op);
    case OpKind::kUpdate:
      return add_update(op);
    default:
      return;
  }
}

HashKey HashProbes::key_of(const Op& op) const {
  HashKey key;
  key.op = hashed_op(op);
  key.unit = op.unit;
  key.group = op.group;
  key.micro_batch = op.micro_batch;
  key.use = op.use;
  key.pass_step = op.step;
  key.chunk = op.chunk;
  key.data_rank = training_.place.data;
  key.tensor_rank = training_.place.tensor;
  // An op on a finished gradient may belong to the last micro-batch or to none.
  const bool is_of_sum = key.op == HashedOp::kReduce && reduces_.at({op.group, op.chunk}) > 1;
  if (key.op > HashedOp::kBackward && !is_of_sum) key.micro_batch = -1;
  return key;
}

HashProbe& HashProbes::add(const HashKey& key, std::span<const std::byte> bytes) {
  auto& probes = key.is_output ? ops_[now_].after : ops_[now_].before;
  table_.keys.push_back(key);
  table_.bytes += static_cast<double>(bytes.size());
  return probes.emplace_back(HashProbe{table_.keys.size() - 1, HashProbe::Form::kBytes, bytes});
}

HashProbe& HashProbes::add(const HashKey& key, const Access& access, Part part) {
  const std::span<const std::byte> all = training_.bytes.of(access);
  TERRACE_CHECK_LE(part.offset, all.size());
  return add(key, all.subspan(part.offset, std::min(part.size_bytes, all.size() - part.offset)));
}

// --- units --------------------------------------------------------------------------------------

void HashProbes::add_unit_op(const Op& op) {
  std::int32_t index = 0;  // of hidden gradients, of which a joined backward has one a micro-batch
  for (const Access& read : op.reads) {
    add_unit_read(op, read, index);
    if (read.role == Role::kHiddenGradient) ++index;
  }
  for (const Access& write : op.writes) {
    if (last_writer_.at(written_by(op, write)) == now_) add_unit_write(op, write);
  }
}

void HashProbes::add_unit_read(const Op& op, const Access& read, std::int32_t index) {
  const UnitModel& unit = model_.units.at(static_cast<std::size_t>(op.unit));
  const std::size_t hidden = std::max(model_.hidden_bytes, model_.tensor.rows_bytes);
  HashKey key = key_of(op);
  key.number = read.number;
  switch (read.role) {
    case Role::kTokens: {
      const std::int32_t count = op.micro_batch < 0 ? program_.micro_batches : 1;
      key.value = "tokens";
      add(key, read, {0, model_.tokens_bytes * static_cast<std::size_t>(count)});
      return;
    }
    case Role::kParameters:
      key.group = unit.groups.at(static_cast<std::size_t>(read.number));
      key.value = "parameters";
      add(key, read, {0, model_.group_bytes(key.group)});
      return;
    case Role::kHidden:
      key.value = "hidden states";
      add(key, read, {0, model_.hidden_bytes});
      return;
    case Role::kHiddenGradient:
      key.number = index;
      key.value = kHiddenGradients;
      add(key, read, {0, op.micro_batch < 0 ? hidden : model_.hidden_bytes});
      return;
    case Role::kSaved:
      return add_saved(op, read, false);
    case Role::kBetween:
      key.value = unit.between.at(static_cast<std::size_t>(read.number)).name;
      add(key, read, {0, unit.between.at(static_cast<std::size_t>(read.number)).size_bytes});
      return;
    default:
      return;
  }
}

void HashProbes::add_unit_write(const Op& op, const Access& write) {
  const UnitModel& unit = model_.units.at(static_cast<std::size_t>(op.unit));
  HashKey key = key_of(op);
  key.is_output = true;
  key.number = write.number;
  switch (write.role) {
    case Role::kHiddenOut:
      key.value = "hidden states";
      add(key, write, {0, model_.hidden_bytes});
      return;
    case Role::kHiddenGradientOut:
      key.value = kHiddenGradients;
      add(key, write, {0, model_.hidden_bytes});
      return;
    case Role::kLosses:
      key.value = "loss";
      add(key, write, {0, sizeof(double)});
      return;
    case Role::kBetween:
      key.value = unit.between.at(static_cast<std::size_t>(write.number)).name;
      add(key, write, {0, unit.between.at(static_cast<std::size_t>(write.number)).size_bytes});
      return;
    case Role::kSaved:
      return add_saved(op, write, true);
    case Role::kGradient:
      return add_gradient(op, write);
    default:
      return;
  }
}

// Only a block's backward finds all of the saved tensors when it begins. A later step of a pass
// finds those that the steps before it have written.
void HashProbes::add_saved(const Op& op, const Access& access, bool is_output) {
  const UnitModel& unit = model_.units.at(static_cast<std::size_t>(op.unit));
  const bool finds_all = op.kind == OpKind::kBackward && op.step == 0 && !unit.fuses_passes();
  if (!is_output && !finds_all) return;
  HashKey key = key_of(op);
  key.is_output = is_output;
  std::int32_t number = 0;
  for (const TensorRange& range : unit.ranges) {
    if (range.role != Role::kSaved) continue;
    key.value = fmt::format("saved {}", range.name);
    key.number = number++;
    add(key, access, {range.offset, range.size_bytes});
  }
  if (number > 0) return;
  key.value = "saved tensors";
  add(key, access, {0, unit.saved_bytes});
}

// The gradient is the sum so far where the op adds to it, and in the first micro-batch. Otherwise
// the sum is kept elsewhere.
void HashProbes::add_gradient(const Op& op, const Access& write) {
  const UnitModel& unit = model_.units.at(static_cast<std::size_t>(op.unit));
  const bool adds = std::ranges::any_of(op.reads, [&](const Access& read) {
    return read.role == Role::kGradient && read.number == write.number;
  });
  HashKey key = key_of(op);
  key.is_output = true;
  key.group = unit.groups.at(static_cast<std::size_t>(write.number));
  key.number = write.number;
  key.value = adds || op.micro_batch <= 0 ? "gradient sum" : "gradient";
  if (model_.owner(key.group) != op.unit) {
    for (const TensorRange& range : unit.ranges) {
      if (range.role != Role::kGradient || range.number != write.number) continue;
      key.value = fmt::format("{} of {}", key.value, range.name);
      add(key, write, {range.offset, range.size_bytes});
    }
    return;
  }
  for (std::int64_t chunk = 0; chunk < model_.trained_chunks(key.group); ++chunk) {
    key.chunk = static_cast<std::int32_t>(chunk);
    add(key, write,
        {static_cast<std::size_t>(model_.chunk_begin(key.group, chunk)) * sizeof(float),
         static_cast<std::size_t>(model_.chunk_size(key.group, chunk)) * sizeof(float)});
  }
}

// --- gradients ----------------------------------------------------------------------------------

HashProbes::Part HashProbes::own_part(const Op& op, const Access& access,
                                      std::size_t element_bytes) const {
  const ChunkPart part = model_.shard(op.group, op.chunk, training_.place.data);
  const std::size_t size_bytes = static_cast<std::size_t>(part.count) * element_bytes;
  const auto whole =
      static_cast<std::size_t>(model_.chunk_size(op.group, op.chunk)) * element_bytes;
  const std::size_t begin = static_cast<std::size_t>(part.begin) * element_bytes;
  return {access.size_bytes >= whole ? begin : 0, size_bytes};
}

// A whole chunk's sum has the key of the backward that would otherwise have added to it in place.
void HashProbes::add_accumulate(const Op& op) {
  const Access& source = *op.find(Role::kSource);
  const Access& sum = op.writes.front();
  const auto whole =
      static_cast<std::size_t>(model_.chunk_size(op.group, op.chunk)) * sizeof(float);
  HashKey key = key_of(op);
  if (source.size_bytes < whole) {
    key.op = HashedOp::kAccumulate;
    key.value = "gradient sum";
    key.is_output = true;
    add(key, sum, own_part(op, sum, sizeof(float)));
    return;
  }
  for (const auto& [written, writer] : last_writer_) {
    const Op& backward = program_.ops[writer];
    if (backward.kind == OpKind::kBackward && backward.unit == op.unit &&
        backward.micro_batch == op.micro_batch && std::get<Role>(written) == Role::kGradient) {
      key.pass_step = backward.step;
    }
  }
  key.number = 0;
  key.value = "gradient";
  add(key, source, {0, whole});
  key.is_output = true;
  key.value = "gradient sum";
  add(key, sum, {0, whole});
}

void HashProbes::add_round(const Op& op) {
  const Access& target = *op.find(Role::kTarget);
  const std::size_t bytes = size_of(model_.gradient_type);
  HashKey key = key_of(op);
  key.is_output = true;
  key.value = "rounded gradient";
  add(key, target, {0, static_cast<std::size_t>(model_.chunk_size(op.group, op.chunk)) * bytes});
}

void HashProbes::add_reduce(const Op& op) {
  if (op.lane != Lane::kCollective) return;  // of the units of tensor-parallel ranks
  add_own_sum(op, size_of(model_.gradient_type));
  add_sum_over_ranks(op);
}

void HashProbes::add_encode(const Op& op) {
  if (op.account == Account::kGradients) add_own_sum(op, sizeof(float));
}

void HashProbes::add_own_sum(const Op& op, std::size_t element_bytes) {
  HashKey key = key_of(op);
  key.value = "gradient";
  add(key, *op.find(Role::kSource),
      {0, static_cast<std::size_t>(model_.chunk_size(op.group, op.chunk)) * element_bytes});
}

void HashProbes::add_sum_over_ranks(const Op& op) {
  HashKey key = key_of(op);
  key.is_output = true;
  key.value = "gradient over ranks";
  const Access& target = *op.find(Role::kTarget);
  add(key, target, own_part(op, target, size_of(model_.gradient_type)));
}

void HashProbes::add_norm_partials(const Op& op) {
  const Access& gradient = *op.find(Role::kGradient);
  HashKey key = key_of(op);
  key.value = "gradient";
  const Part part = own_part(op, gradient, size_of(model_.gradient_type));
  add(key, gradient, part);
  key.is_output = true;
  key.value = "sums of squares";
  const std::size_t blocks = size_of(model_.gradient_type) * kBlockElements / sizeof(double);
  add(key, *op.find(Role::kPartials), {part.offset / blocks, part.size_bytes / blocks});
}

// Every rank has the same numbers.
void HashProbes::add_norm(const Op& op) {
  HashKey key = key_of(op);
  key.unit = -1;
  key.data_rank = 0;
  key.tensor_rank = 0;
  key.is_output = true;
  key.value = "loss";
  add(key, {}).form = HashProbe::Form::kLoss;
  key.value = "gradient norm";
  add(key, {}).form = HashProbe::Form::kNorm;
}

// --- updates ------------------------------------------------------------------------------------

void HashProbes::add_update(const Op& op) {
  const HomePart home = model_.home_part(StateClass::kOptimizer, op.group, op.chunk);
  const ChunkPart own = model_.shard(op.group, op.chunk, training_.place.data);
  const std::int64_t first = home.place_of(own.begin).value();
  TERRACE_CHECK_LE(first + own.count, home.count);
  const auto part = [&](std::size_t bytes) {
    return Part{static_cast<std::size_t>(first) * bytes,
                static_cast<std::size_t>(own.count) * bytes};
  };
  HashKey key = key_of(op);
  key.value = "gradient";
  add(key, *op.find(Role::kGradient), part(size_of(model_.gradient_type)));
  key.value = "scalars";
  Access scalars = *op.find(Role::kScalars);
  const auto rule =
      static_cast<std::size_t>(model_.groups.at(static_cast<std::size_t>(op.group)).rule);
  add(key, scalars, {rule * kScalarBytes, sizeof(StepScalars)});
  for (const bool is_output : {false, true}) {
    key.is_output = is_output;
    key.value = "parameters";
    const auto& accesses = is_output ? op.writes : op.reads;
    const auto access = std::ranges::find(accesses, Role::kParameters, &Access::role);
    if (access != accesses.end()) add(key, *access, part(model_.parameter_bytes(op.group)));
    add_state(op, is_output, first, own.count);
  }
}

// Leaves out 8-bit slots: the same numbers may have other codes there, after a resume.
void HashProbes::add_state(const Op& op, bool is_output, std::int64_t first, std::int64_t count) {
  const Access* state = op.find(Role::kState);
  if (state == nullptr) return;
  const StateFormat& format = model_.format_of(op.group);
  const HomePart home = model_.home_part(StateClass::kOptimizer, op.group, op.chunk);
  const StateLayout layout = format.layout(home.count);
  const auto part = [&](const StatePart& of) {
    const std::size_t bytes = size_of(of.dtype);
    return Part{of.begin + static_cast<std::size_t>(first) * bytes,
                static_cast<std::size_t>(count) * bytes};
  };
  HashKey key = key_of(op);
  key.is_output = is_output;
  const std::int32_t rule = model_.groups.at(static_cast<std::size_t>(op.group)).rule;
  const std::span<const Slot> slots = training_.optimizer.rule_of(rule).rule->slots;
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (format.slot_form == SlotForm::kInt8) break;
    key.value = slots[slot].name;
    add(key, *state, part(layout.slots[slot]));
  }
  if (format.master == MasterForm::kParameter) return;
  key.value = "master weights";
  const bool has_low_halves =
      format.master == MasterForm::kFp32 && model_.parameter_type(op.group) == DType::kBF16;
  HashProbe& master = add(key, *state, part(layout.master));
  if (has_low_halves) master.form = HashProbe::Form::kLowHalves;
}

}  // namespace terrace
