#include "runtime/train/token_sampler.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "runtime/model/experts_layer.h"
#include "runtime/model/rope_table.h"
#include "runtime/model/unit_compute.h"
#include "runtime/train/held_parameters.h"

namespace terrace {
namespace {

// The number of rows that are computed together: enough that each read of the weights serves many
// rows, and few enough that the activations stay small beside the weights.
constexpr std::int64_t kRowsTogether = 512;

constexpr std::size_t kLineBytes = 64;  // of a cache line

std::int64_t rows_together(const TokenSampler::Shape& shape) {
  return std::min(kRowsTogether, shape.positions);
}

std::int64_t rows_in_pass(const TokenSampler::Shape& shape) {
  return std::min(std::max(shape.rows_of_pass, kRowsTogether), shape.positions);
}

// Adds up regions that begin on cache line boundaries.
class Regions {
 public:
  std::size_t add(std::size_t size_bytes) {
    const std::size_t offset = total_;
    total_ += round_up(size_bytes, kLineBytes);
    return offset;
  }
  std::size_t total_bytes() const { return total_; }

 private:
  std::size_t total_ = 0;
};

std::size_t bytes_of(std::int64_t elements, DType type) {
  return static_cast<std::size_t>(elements) * size_of(type);
}

std::vector<float> frequencies_of(const ModelConfig& config, std::int64_t length) {
  std::vector<float> all;
  for (const RopeOptions& rope : config.ropes) {
    const auto some = rope_frequencies(rope, length, config.rotated_width());
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace

// Computes a fixed number of rows at a time: holds the units' computation for that number, and the
// memory for it.
class TokenSampler::Rows {
 public:
  Rows(const Shape& shape, const std::vector<UnitLayout>& layout, std::int64_t count)
      : Rows(shape, layout, count, RowsPlan(shape, layout, count)) {}

  static std::size_t memory_bytes(const Shape& shape, const std::vector<UnitLayout>& layout,
                                  std::int64_t count) {
    return RowsPlan(shape, layout, count).regions.total_bytes();
  }
  // Returns the most bytes that the steps of a unit leave for each other.
  static std::size_t between_bytes(const Shape& shape, const std::vector<UnitLayout>& layout,
                                   std::int64_t count) {
    return RowsPlan(shape, layout, count).between_bytes;
  }

  std::int64_t count() const { return compute_.batch().positions; }
  std::vector<float> constants(std::int64_t length) const { return compute_.constants(length); }

  // Sets the ids and the positions of the rows.
  void set(std::span<const std::int32_t> ids, std::int64_t first_position) {
    TERRACE_CHECK_EQ(static_cast<std::int64_t>(ids.size()), count());
    std::int32_t* const tokens = numbers();
    std::ranges::copy(ids, tokens);
    std::fill_n(tokens + count(), count(), -1);  // targets
    std::iota(tokens + 2 * count(), tokens + 3 * count(),
              static_cast<std::int32_t>(first_position));
  }

  // Returns the number of steps of the embedding or of a block.
  std::int32_t steps(std::int64_t unit) const {
    return static_cast<std::int32_t>(unit_at(unit).forward.size());
  }
  // Returns the expert whose parameters a step reads; -1 where it reads none.
  std::int32_t expert_of(std::int64_t unit, std::int32_t step) const {
    const auto& groups = unit_at(unit).forward.at(static_cast<std::size_t>(step)).groups;
    return groups.empty() ? -1 : groups.front() - 1;
  }
  // Returns where the rows of the experts begin, among what the steps of a unit leave at `between`.
  const std::int32_t* rows_of_experts(std::int64_t unit, const std::byte* between) const {
    const std::vector<BetweenBuffer>& buffers = unit_at(unit).between;
    const auto found = std::ranges::find(buffers, kRowsOfExperts, &BetweenBuffer::name);
    TERRACE_CHECK(found != buffers.end());
    for (auto before = buffers.begin(); before != found; ++before) {
      between += round_up(before->size_bytes, kLineBytes);
    }
    return reinterpret_cast<const std::int32_t*>(between);
  }

  // Runs a step of the embedding or of a block. `hidden` holds the output of the unit before it,
  // and gets its own output after the last step. `between` holds what steps leave for each other.
  void run_step(WorkerArena& workers, const UnitGraph::Where& where, std::byte* hidden,
                std::byte* between, UnitMemory memory) {
    memory.of(Role::kTokens) = at(plan_.numbers);
    memory.of(Role::kSaved) = at(plan_.saved);
    memory.of(Role::kHidden) = hidden;
    memory.of(Role::kHiddenOut) = at(plan_.output);
    std::vector<std::byte*> buffers;
    for (const BetweenBuffer& buffer : unit_at(where.unit).between) {
      buffers.push_back(between);
      between += round_up(buffer.size_bytes, kLineBytes);
    }
    memory.between = buffers;
    compute_.run(context(workers), where, memory);
    if (where.step + 1 < steps(where.unit)) return;
    std::memcpy(hidden, at(plan_.output), static_cast<std::size_t>(count()) * plan_.row_bytes);
  }

  // Runs the head on the last of the rows.
  void run_head(WorkerArena& workers, std::int64_t unit, const std::byte* hidden,
                UnitMemory memory) {
    std::array<std::int32_t, 3> head_numbers = {0, -1, 0};
    double loss_sum = 0;
    const auto before = static_cast<std::size_t>(count() - 1) * plan_.row_bytes;
    std::memcpy(at(plan_.output), hidden + before, plan_.row_bytes);  // to an aligned address
    memory.of(Role::kTokens) = reinterpret_cast<std::byte*>(head_numbers.data());
    memory.of(Role::kSaved) = at(plan_.saved);
    memory.of(Role::kHidden) = at(plan_.output);
    memory.of(Role::kLosses) = reinterpret_cast<std::byte*>(&loss_sum);
    compute_.run(context(workers), UnitGraph::Where{.unit = unit}, memory);
  }

 private:
  struct RowsPlan {
    RowsPlan(const Shape& shape, const std::vector<UnitLayout>& layout, std::int64_t count)
        : RowsPlan(shape, compute_of(shape, layout, count)) {}
    RowsPlan(const Shape& shape, const UnitCompute& compute) {
      const ComputeModel model = compute.model(1, shape.threads);
      numbers = regions.add(model.tokens_bytes);
      output = regions.add(model.hidden_bytes);
      std::size_t saved_bytes = 0;
      for (const UnitModel& unit : model.units) {
        saved_bytes = std::max(saved_bytes, unit.saved_bytes);
        std::size_t between = 0;
        for (const BetweenBuffer& buffer : unit.between) {
          between += round_up(buffer.size_bytes, kLineBytes);
        }
        between_bytes = std::max(between_bytes, between);
      }
      saved = regions.add(saved_bytes);
      workspace_bytes = model.workspace_bytes;
      workspace = regions.add(workspace_bytes);
      row_bytes = bytes_of(shape.config.width, shape.compute_type);
      units = model.units;
    }
    Regions regions;
    std::vector<UnitModel> units;
    std::size_t between_bytes = 0;
    std::size_t numbers = 0, output = 0, saved = 0, workspace = 0, workspace_bytes = 0;
    std::size_t row_bytes = 0;
  };

  Rows(const Shape& shape, const std::vector<UnitLayout>& layout, std::int64_t count,
       const RowsPlan& plan)
      : compute_(compute_of(shape, layout, count)),
        plan_(plan),
        memory_(plan.regions.total_bytes(), {}) {}

  static UnitCompute compute_of(const Shape& shape, const std::vector<UnitLayout>& layout,
                                std::int64_t count) {
    const BatchShape batch = {.positions = count, .kept_positions = shape.positions};
    return {shape.config,
            layout,
            {.compute_type = shape.compute_type,
             .batch = batch,
             .split = {},
             .experts_per_group = shape.reads_experts ? 1 : 0},
            cpu_kernels()};
  }
  KernelContext context(WorkerArena& workers) {
    KernelContext context;
    context.workers = &workers;
    context.workspace = {at(plan_.workspace), plan_.workspace_bytes};
    return context;
  }
  const UnitModel& unit_at(std::int64_t unit) const {
    return plan_.units.at(static_cast<std::size_t>(unit));
  }
  std::int32_t* numbers() { return reinterpret_cast<std::int32_t*>(at(plan_.numbers)); }
  std::byte* at(std::size_t offset) { return memory_.bytes().data() + offset; }

  UnitCompute compute_;
  RowsPlan plan_;
  HostMemory memory_;
};

TokenSampler::Plan::Plan(const Shape& shape, const std::vector<UnitLayout>& layout) {
  const ModelConfig& config = shape.config;
  Regions regions;
  const auto ropes = static_cast<std::int64_t>(config.ropes.size());
  constants = regions.add(bytes_of(ropes * shape.positions * config.rotated_width(), DType::kF32));
  logits = regions.add(bytes_of(config.vocabulary, DType::kF32));
  row_bytes = bytes_of(config.width, shape.compute_type);
  hidden = regions.add(static_cast<std::size_t>(rows_in_pass(shape)) * row_bytes);
  if (shape.reads_experts) {
    std::int64_t elements = 0;
    for (const UnitLayout& unit : layout) elements = std::max(elements, unit.experts.elements);
    expert_bytes = bytes_of(elements, shape.compute_type);
    expert = regions.add(expert_bytes);
    table = regions.add(static_cast<std::size_t>(rows_in_pass(shape)) * row_bytes);
    between_bytes = Rows::between_bytes(shape, layout, rows_together(shape));
    const auto pieces = (rows_in_pass(shape) + kRowsTogether - 1) / kRowsTogether;
    between = regions.add(static_cast<std::size_t>(pieces) * between_bytes);
  }
  total_bytes = regions.total_bytes();
  const std::int64_t width = 2 * config.key_value_heads * config.head_width;
  key_value_bytes = round_up(bytes_of(shape.positions * width, shape.compute_type), kLineBytes);
}

// Counts some_rows_ too where a text may have more rows than are computed together: it computes the
// remaining rows.
TokenSampler::Memory TokenSampler::memory_beside(const Shape& shape) {
  const std::vector<UnitLayout> layout = frozen_layout(shape.config);
  const Plan plan(shape, layout);
  const std::size_t most = Rows::memory_bytes(shape, layout, rows_together(shape));
  const std::size_t some = shape.positions > kRowsTogether ? most : 0;
  return {.key_values = plan.key_value_bytes * static_cast<std::size_t>(shape.config.layers),
          .computation = plan.total_bytes + Rows::memory_bytes(shape, layout, 1) + most + some};
}

std::size_t TokenSampler::memory_bytes(const Shape& shape) {
  return HeldParameters::memory_bytes(frozen_layout(shape.config), shape.compute_type) +
         memory_beside(shape).total();
}

TokenSampler::TokenSampler(std::unique_ptr<UnitParameters> parameters, const Shape& shape)
    : shape_(shape),
      layout_(frozen_layout(shape.config)),
      plan_(shape_, layout_),
      follows_text_(shape.rope_of_text &&
                    std::ranges::any_of(shape.config.ropes, depends_on_length)),
      workers_(shape.threads),
      memory_(plan_.total_bytes, {}),
      key_values_(plan_.key_value_bytes * static_cast<std::size_t>(shape.config.layers),
                  {.touch = false}),
      parameters_(std::move(parameters)),
      one_row_(std::make_unique<Rows>(shape_, layout_, 1)) {
  rotate_as(shape_.positions);
}

TokenSampler::TokenSampler(const Shape& shape, FetchParameter fetch)
    : TokenSampler(std::make_unique<HeldParameters>(shape.config, shape.compute_type, fetch),
                   shape) {}

TokenSampler::~TokenSampler() = default;

// Rotates as for a text of `length`. If that changes the rotation, drops the kept keys and values:
// keys rotated differently, and the results of later blocks that used them, are of no use any more.
void TokenSampler::rotate_as(std::int64_t length) {
  std::vector<float> frequencies = frequencies_of(shape_.config, length);
  if (frequencies == frequencies_) return;
  frequencies_ = std::move(frequencies);
  known_.clear();
  const std::vector<float> tables = one_row_->constants(length);
  std::memcpy(at(plan_.constants), tables.data(), tables.size() * sizeof(float));
}

TokenSampler::Rows& TokenSampler::rows_of(std::int64_t count) {
  if (count == 1) return *one_row_;
  std::unique_ptr<Rows>& rows = count == kRowsTogether ? most_rows_ : some_rows_;
  if (rows == nullptr || rows->count() != count) {
    rows.reset();  // frees its memory first
    rows = std::make_unique<Rows>(shape_, layout_, count);
  }
  return *rows;
}

std::vector<TokenSampler::Piece> TokenSampler::pieces_of(std::span<const std::int32_t> ids) {
  std::vector<Piece> pieces;
  for (std::size_t first = 0; first < ids.size(); first += pieces.back().ids.size()) {
    const std::size_t count = std::min(ids.size() - first, static_cast<std::size_t>(kRowsTogether));
    Rows& rows = rows_of(static_cast<std::int64_t>(count));
    pieces.push_back({&rows, first, pieces.size(), ids.subspan(first, count)});
  }
  return pieces;
}

// Runs a step of a unit on a piece. The piece's rows come after the known rows and the rows of the
// pieces before.
void TokenSampler::run_step(const Piece& piece, const UnitParameters::Turn& turn,
                            std::int32_t step) {
  const auto before = static_cast<std::int64_t>(known_.size() + piece.first);
  piece.rows->set(piece.ids, before);
  UnitMemory memory;
  memory.of(Role::kConstants) = at(plan_.constants);
  memory.of(Role::kParameters) = turn.parameters;
  memory.kept_rows = before;
  if (turn.unit > 0) {
    const auto block = static_cast<std::size_t>(turn.unit - 1);
    memory.of(Role::kKeyValues) = key_values_.bytes().data() + block * plan_.key_value_bytes;
  }
  std::vector<GroupMemory> groups;
  const std::int32_t expert = piece.rows->expert_of(turn.unit, step);
  if (expert >= 0) {
    groups.resize(static_cast<std::size_t>(expert) + 2);
    groups.back().parameters = at(plan_.expert);
    memory.groups = groups;
  }
  piece.rows->run_step(workers_, {.step = step, .unit = turn.unit}, hidden_of(piece),
                       between_of(piece), memory);
}

// Looks up the rows of the pieces in the embedding. If it is not in memory, reads their rows once
// each, as a table in which each has its own number.
void TokenSampler::look_up(const std::vector<Piece>& pieces, const UnitParameters::Turn& turn) {
  UnitParameters::Turn known = turn;
  std::vector<std::int32_t> ids;
  for (const Piece& piece : pieces) ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
  if (turn.parameters == nullptr) {
    TERRACE_CHECK_EQ(layout_.front().tensors.size(), 1U);
    std::vector<std::int32_t> rows = ids;
    std::ranges::sort(rows);
    const auto repeated = std::ranges::unique(rows);
    rows.erase(repeated.begin(), repeated.end());
    known.parameters = at(plan_.table);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      turn.reader->read(turn.unit, rows[i] * shape_.config.width,
                        {known.parameters + i * plan_.row_bytes, plan_.row_bytes});
    }
    for (std::int32_t& id : ids) {
      id = static_cast<std::int32_t>(std::ranges::lower_bound(rows, id) - rows.begin());
    }
  }
  for (Piece piece : pieces) {
    piece.ids = std::span<const std::int32_t>(ids).subspan(piece.first, piece.ids.size());
    run_step(piece, known, 0);
  }
}

bool TokenSampler::has_rows(const Piece& piece, std::int32_t unit, std::int32_t expert) {
  const std::int32_t* const first = piece.rows->rows_of_experts(unit, between_of(piece)) + expert;
  return first[0] < first[1];
}

void TokenSampler::read_expert(const UnitParameters::Turn& turn, std::int32_t expert) {
  const UnitLayout& unit = layout_.at(static_cast<std::size_t>(turn.unit));
  const std::int64_t begin = unit.shared_elements() + expert * unit.experts.elements;
  turn.reader->read(turn.unit, begin,
                    {at(plan_.expert), bytes_of(unit.experts.elements, shape_.compute_type)});
}

// Runs a block step by step, and a step on all pieces. An expert is read before the first piece
// that has rows of it, and serves the pieces behind it.
void TokenSampler::run_block(const std::vector<Piece>& pieces, const UnitParameters::Turn& turn) {
  const Rows& rows = *pieces.front().rows;
  for (std::int32_t step = 0; step < rows.steps(turn.unit); ++step) {
    const std::int32_t expert = rows.expert_of(turn.unit, step);
    bool is_read = false;
    for (const Piece& piece : pieces) {
      if (expert >= 0 && !has_rows(piece, turn.unit, expert)) continue;
      if (expert >= 0 && !is_read) read_expert(turn, expert);
      is_read = true;
      run_step(piece, turn, step);
    }
  }
}

void TokenSampler::run_head(const Piece& last, const UnitParameters::Turn& turn) {
  UnitMemory memory;
  memory.of(Role::kParameters) = turn.parameters;
  const std::array<GroupMemory, 2> groups = {
      {{.parameters = turn.parameters}, {.parameters = turn.tied}}};
  memory.groups = groups;
  memory.of(Role::kLogits) = at(plan_.logits);
  last.rows->run_head(workers_, turn.unit, hidden_of(last), memory);
}

// Computes the next rows after the known ones: unit by unit, and within a unit piece by piece.
void TokenSampler::pass(std::span<const std::int32_t> ids, bool wants_logits) {
  const std::vector<Piece> pieces = pieces_of(ids);
  const auto head = static_cast<std::int32_t>(layout_.size()) - 1;
  parameters_->for_each_unit([&](const UnitParameters::Turn& turn) {
    if (turn.unit == 0) {
      look_up(pieces, turn);
    } else if (turn.unit < head) {
      run_block(pieces, turn);
    } else if (wants_logits) {
      run_head(pieces.back(), turn);
    }
  });
  known_.insert(known_.end(), ids.begin(), ids.end());
}

std::span<const float> TokenSampler::logits_after(std::span<const std::int32_t> ids) {
  TERRACE_CHECK(!ids.empty());
  TERRACE_CHECK_LE(static_cast<std::int64_t>(ids.size()), positions());
  if (follows_text_) rotate_as(static_cast<std::int64_t>(ids.size()));
  // The last row is always computed, because its logits are wanted.
  const auto before_last = ids.first(ids.size() - 1);
  known_.erase(std::ranges::mismatch(known_, before_last).in1, known_.end());
  const auto most = static_cast<std::size_t>(rows_in_pass(shape_));
  while (known_.size() < ids.size()) {
    const auto left = ids.subspan(known_.size());
    pass(left.first(std::min(left.size(), most)), left.size() <= most);
  }
  return {reinterpret_cast<const float*>(at(plan_.logits)),
          static_cast<std::size_t>(shape_.config.vocabulary)};
}

}  // namespace terrace
