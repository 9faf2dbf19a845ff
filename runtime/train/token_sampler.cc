#include "runtime/train/token_sampler.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "runtime/model/rope_table.h"
#include "runtime/model/unit_compute.h"

namespace terrace {
namespace {

// Rows of a long text that are computed together: enough that weights are read for many of them,
// and few enough that activations stay small beside the weights.
constexpr std::int64_t kRowsTogether = 512;
// Of a parameter that is fetched at once; a tensor stored transposed is read whole anyway.
constexpr std::int64_t kFetchElements = 16 * 1024 * 1024;

// Nothing trains, so a forward saves nothing for a backward.
std::vector<UnitLayout> frozen_layout(const ModelConfig& config) {
  std::vector<UnitLayout> layout = parameter_layout(config);
  for (UnitLayout& unit : layout) {
    unit.frozen_elements = unit.padded_elements;
    for (ParameterTensor& tensor : unit.tensors) tensor.trainable = false;
  }
  return layout;
}

// Adds up regions on boundaries of cache lines.
class Regions {
 public:
  std::size_t add(std::size_t size_bytes) {
    const std::size_t offset = total_;
    total_ += round_up(size_bytes, 64);
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

// Computes so many rows at a time: what the units compute then, and memory for it.
class TokenSampler::Pass {
 public:
  Pass(const Shape& shape, const std::vector<UnitLayout>& layout, std::int64_t rows)
      : Pass(shape, layout, rows, PassPlan(shape, layout, rows)) {}

  static std::size_t memory_bytes(const Shape& shape, const std::vector<UnitLayout>& layout,
                                  std::int64_t rows) {
    return PassPlan(shape, layout, rows).regions.total_bytes();
  }

  std::int64_t rows() const { return compute_.batch().positions; }
  std::vector<float> constants(std::int64_t length) const { return compute_.constants(length); }

  // Fills in what the rows are and where they stand.
  void set_rows(std::span<const std::int32_t> ids, std::int64_t first_position) {
    TERRACE_CHECK_EQ(static_cast<std::int64_t>(ids.size()), rows());
    std::int32_t* const tokens = numbers();
    std::ranges::copy(ids, tokens);
    std::fill_n(tokens + rows(), rows(), -1);  // targets
    std::iota(tokens + 2 * rows(), tokens + 3 * rows(), static_cast<std::int32_t>(first_position));
  }

  // The embedding or a block. Its input is the output of the unit before it.
  void run_unit(WorkerArena& workers, std::int64_t unit, UnitMemory memory) {
    memory.of(Role::kTokens) = at(plan_.numbers);
    memory.of(Role::kSaved) = at(plan_.saved);
    memory.of(Role::kHidden) = at(plan_.hidden[0]);
    memory.of(Role::kHiddenOut) = at(plan_.hidden[1]);
    compute_.run(context(workers), unit, {}, memory);
    std::swap(plan_.hidden[0], plan_.hidden[1]);
  }

  // The head, on the last row.
  void run_head(WorkerArena& workers, std::int64_t unit, UnitMemory memory) {
    std::array<std::int32_t, 3> head_numbers = {0, -1, 0};
    double loss_sum = 0;
    const std::size_t row_bytes = plan_.row_bytes;
    const auto before = static_cast<std::size_t>(rows() - 1) * row_bytes;
    std::memcpy(at(plan_.hidden[1]), at(plan_.hidden[0]) + before, row_bytes);  // on a boundary
    memory.of(Role::kTokens) = reinterpret_cast<std::byte*>(head_numbers.data());
    memory.of(Role::kSaved) = at(plan_.saved);
    memory.of(Role::kHidden) = at(plan_.hidden[1]);
    memory.of(Role::kLosses) = reinterpret_cast<std::byte*>(&loss_sum);
    compute_.run(context(workers), unit, {}, memory);
  }

 private:
  struct PassPlan {
    PassPlan(const Shape& shape, const std::vector<UnitLayout>& layout, std::int64_t rows)
        : PassPlan(shape, compute_of(shape, layout, rows)) {}
    PassPlan(const Shape& shape, const UnitCompute& compute) {
      const ComputeModel model = compute.model(1, shape.threads);
      numbers = regions.add(model.tokens_bytes);
      for (std::size_t& side : hidden) side = regions.add(model.hidden_bytes);
      std::size_t saved_bytes = 0;
      for (const UnitModel& unit : model.units) {
        saved_bytes = std::max(saved_bytes, unit.saved_bytes);
      }
      saved = regions.add(saved_bytes);
      workspace_bytes = model.workspace_bytes;
      workspace = regions.add(workspace_bytes);
      row_bytes = bytes_of(shape.config.width, shape.compute_type);
    }
    Regions regions;
    std::size_t numbers = 0, saved = 0, workspace = 0, workspace_bytes = 0, row_bytes = 0;
    std::array<std::size_t, 2> hidden = {};
  };

  Pass(const Shape& shape, const std::vector<UnitLayout>& layout, std::int64_t rows,
       const PassPlan& plan)
      : compute_(compute_of(shape, layout, rows)),
        plan_(plan),
        memory_(plan.regions.total_bytes(), {}) {}

  static UnitCompute compute_of(const Shape& shape, const std::vector<UnitLayout>& layout,
                                std::int64_t rows) {
    const BatchShape batch = {.positions = rows, .kept_positions = shape.positions};
    return {shape.config, layout, {shape.compute_type, batch, {}}, cpu_kernels()};
  }
  KernelContext context(WorkerArena& workers) {
    KernelContext context;
    context.workers = &workers;
    context.workspace = {at(plan_.workspace), plan_.workspace_bytes};
    return context;
  }
  std::int32_t* numbers() { return reinterpret_cast<std::int32_t*>(at(plan_.numbers)); }
  std::byte* at(std::size_t offset) { return memory_.bytes().data() + offset; }

  UnitCompute compute_;
  PassPlan plan_;
  HostMemory memory_;
};

TokenSampler::Plan::Plan(const Shape& shape, const std::vector<UnitLayout>& layout) {
  const ModelConfig& config = shape.config;
  Regions regions;
  for (const UnitLayout& unit : layout) {
    parameters.push_back(regions.add(bytes_of(unit.padded_elements, shape.compute_type)));
  }
  const auto ropes = static_cast<std::int64_t>(config.ropes.size());
  constants = regions.add(bytes_of(ropes * shape.positions * config.rotated_width(), DType::kF32));
  logits = regions.add(bytes_of(config.vocabulary, DType::kF32));
  total_bytes = regions.total_bytes();
  const std::int64_t width = 2 * config.key_value_heads * config.head_width;
  key_value_bytes = round_up(bytes_of(shape.positions * width, shape.compute_type), 64);
}

std::size_t TokenSampler::memory_bytes(const Shape& shape) {
  const std::vector<UnitLayout> layout = frozen_layout(shape.config);
  const Plan plan(shape, layout);
  const std::int64_t rows = std::min(kRowsTogether, shape.positions);
  return plan.total_bytes + plan.key_value_bytes * static_cast<std::size_t>(shape.config.layers) +
         Pass::memory_bytes(shape, layout, 1) + Pass::memory_bytes(shape, layout, rows);
}

TokenSampler::TokenSampler(const Shape& shape, FetchParameter fetch)
    : shape_(shape),
      layout_(frozen_layout(shape.config)),
      plan_(shape_, layout_),
      follows_text_(shape.rope_of_text &&
                    std::ranges::any_of(shape.config.ropes, depends_on_length)),
      workers_(shape.threads),
      memory_(plan_.total_bytes, {}),
      key_values_(plan_.key_value_bytes * static_cast<std::size_t>(shape.config.layers),
                  {.touch = false}),
      one_row_(std::make_unique<Pass>(shape_, layout_, 1)) {
  for (const UnitLayout& unit : layout_) load_unit(unit, fetch);
  rotate_as(shape_.positions);
}

TokenSampler::~TokenSampler() = default;

// Keys that were rotated otherwise, and what later blocks made of them, are of no use any more.
void TokenSampler::rotate_as(std::int64_t length) {
  std::vector<float> frequencies = frequencies_of(shape_.config, length);
  if (frequencies == frequencies_) return;
  frequencies_ = std::move(frequencies);
  known_.clear();
  const std::vector<float> tables = one_row_->constants(length);
  std::memcpy(at(plan_.constants), tables.data(), tables.size() * sizeof(float));
}

void TokenSampler::load_unit(const UnitLayout& unit, FetchParameter fetch) {
  const DType type = shape_.compute_type;
  std::byte* base = at(plan_.parameters.at(static_cast<std::size_t>(unit.index)));
  std::vector<float> values;
  for (const ParameterTensor& tensor : unit.tensors) {
    const std::int64_t grain = tensor.stored_transposed ? tensor.elements() : kFetchElements;
    for (std::int64_t begin = 0; begin < tensor.elements(); begin += grain) {
      values.resize(static_cast<std::size_t>(std::min(grain, tensor.elements() - begin)));
      fetch(unit, tensor, begin, values);
      std::byte* target = base + bytes_of(tensor.offset + begin, type);
      if (type == DType::kF32) {
        std::memcpy(target, values.data(), values.size() * sizeof(float));
      } else {
        std::transform(values.begin(), values.end(), reinterpret_cast<Bf16*>(target),
                       to_bf16_ties_away);
      }
    }
  }
}

TokenSampler::Pass& TokenSampler::pass_of(std::int64_t rows) {
  if (rows == 1) return *one_row_;
  if (many_rows_ == nullptr || many_rows_->rows() != rows) {
    many_rows_.reset();  // its memory first
    many_rows_ = std::make_unique<Pass>(shape_, layout_, rows);
  }
  return *many_rows_;
}

// The next rows behind those that are known.
void TokenSampler::compute(std::span<const std::int32_t> ids) {
  Pass& pass = pass_of(static_cast<std::int64_t>(ids.size()));
  pass.set_rows(ids, static_cast<std::int64_t>(known_.size()));
  UnitMemory memory;
  memory.of(Role::kConstants) = at(plan_.constants);
  memory.kept_rows = static_cast<std::int64_t>(known_.size());
  for (std::size_t unit = 0; unit + 1 < layout_.size(); ++unit) {
    memory.of(Role::kParameters) = at(plan_.parameters.at(unit));
    if (unit > 0) {
      memory.of(Role::kKeyValues) = key_values_.bytes().data() + (unit - 1) * plan_.key_value_bytes;
    }
    pass.run_unit(workers_, static_cast<std::int64_t>(unit), memory);
  }
  known_.insert(known_.end(), ids.begin(), ids.end());
  last_pass_ = &pass;
}

std::span<const float> TokenSampler::logits_after(std::span<const std::int32_t> ids) {
  TERRACE_CHECK(!ids.empty());
  TERRACE_CHECK_LE(static_cast<std::int64_t>(ids.size()), positions());
  if (follows_text_) rotate_as(static_cast<std::int64_t>(ids.size()));
  // The last row is computed in any case: its logits are wanted.
  const auto before_last = ids.first(ids.size() - 1);
  known_.erase(std::ranges::mismatch(known_, before_last).in1, known_.end());
  while (known_.size() < ids.size()) {
    const auto left = ids.subspan(known_.size());
    compute(left.first(std::min(left.size(), static_cast<std::size_t>(kRowsTogether))));
  }
  const std::size_t last = layout_.size() - 1;
  UnitMemory memory;
  memory.of(Role::kParameters) = at(plan_.parameters.at(last));
  memory.of(Role::kTiedParameters) = at(plan_.parameters.front());
  memory.of(Role::kLogits) = at(plan_.logits);
  last_pass_->run_head(workers_, static_cast<std::int64_t>(last), memory);
  return {reinterpret_cast<const float*>(at(plan_.logits)),
          static_cast<std::size_t>(shape_.config.vocabulary)};
}

}  // namespace terrace
