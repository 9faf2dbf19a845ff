#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "runtime/model/state_source.h"
#include "runtime/model/tensor_split.h"
#include "runtime/model/unit_compute.h"

namespace terrace {

// The forward and backward of the first block of a model, or of another, in fp32. Tensor-parallel
// ranks run in turn; the data that they exchange is copied and added here. Rows are the rows of one
// micro-batch.
class BlockRun {
 public:
  struct Setting {
    BatchShape batch;
    std::int32_t ranks = 1;
    bool shares_rows = false;
    // The first of the micro-batch's samples, if it has their list; -1: all rows have this number.
    std::int32_t first_sample = 0;
    std::uint64_t dropout_seed = 0;
  };

  // `parameters` holds the whole block's parameters in the order of parameter_layout(config).
  // `unit` is the block's index there.
  BlockRun(const ModelConfig& config, const Setting& setting, std::span<const float> parameters,
           std::int64_t unit = 1)
      : whole_(parameter_layout(config)),
        unit_(static_cast<std::size_t>(unit)),
        setting_(setting),
        hidden_elements_(static_cast<std::size_t>(setting.batch.rows() * config.width)) {
    const GivenParameters given(parameters);
    const TensorPartState parts(given, whole_);
    for (std::int32_t r = 0; r < setting.ranks; ++r) {
      const TensorSplit split = {setting.ranks, r, setting.shares_rows};
      ranks_.push_back(std::make_unique<Rank>(config, split, setting, unit_));
      number_samples(ranks_.back()->bytes(Role::kTokens));
      if (setting.ranks == 1) {
        given.read(StateField::kMaster, whole_[unit_], 0, ranks_[0]->of(Role::kParameters));
      } else {
        parts.read(StateField::kMaster, ranks_.back()->layout(), 0,
                   ranks_.back()->of(Role::kParameters));
      }
    }
  }

  // Returns all rows of the output for all rows of the input.
  std::vector<float> forward(std::span<const float> input) {
    share_rows(input, Role::kHidden);
    run(UnitGraph::Pass::kForward);
    return all_rows(Role::kHiddenOut);
  }
  // Returns all rows of the input's gradient for all rows of the output's gradient. Must be called
  // after forward(). Computes the activations again first.
  std::vector<float> backward(std::span<const float> gradient) {
    share_rows(gradient, Role::kHiddenGradient);
    for (const auto& rank : ranks_) std::ranges::fill(rank->of(Role::kSaved), -1.0F);
    run(UnitGraph::Pass::kRecompute);
    run(UnitGraph::Pass::kBackward);
    return all_rows(Role::kHiddenGradientOut);
  }
  // Returns the whole gradient of a parameter, from ranks that each have a part of the parameter or
  // of its gradient.
  std::vector<float> whole_gradient_of(ParameterKind kind) const {
    std::vector<float> whole(static_cast<std::size_t>(whole_[unit_].find(kind)->elements()));
    for (const auto& rank : ranks_) {
      const ParameterTensor& part = *rank->layout().find(kind);
      const std::span<const float> values = rank->of(Role::kGradient);
      for (std::int64_t i = 0; i < part.elements(); ++i) {
        whole.at(static_cast<std::size_t>(part.slice.whole_of(i, part.slice.rank))) +=
            values[static_cast<std::size_t>(part.offset + i)];
      }
    }
    return whole;
  }
  // Returns the whole gradient of a parameter where there is one rank.
  std::vector<float> gradient_of(ParameterKind kind) const {
    TERRACE_CHECK_EQ(ranks_.size(), 1U);
    const ParameterTensor* const tensor = whole_[unit_].find(kind);
    TERRACE_CHECK(tensor != nullptr);
    const std::span<float> part = ranks_[0]
                                      ->of(Role::kGradient)
                                      .subspan(static_cast<std::size_t>(tensor->offset),
                                               static_cast<std::size_t>(tensor->elements()));
    return {part.begin(), part.end()};
  }
  const UnitModel& model() const { return ranks_[0]->model; }

 private:
  class GivenParameters final : public StateSource {
   public:
    explicit GivenParameters(std::span<const float> values) : values_(values) {}
    void read(StateField /*field*/, const UnitLayout& /*unit*/, std::int64_t begin,
              std::span<float> out) const override {
      for (std::size_t i = 0; i < out.size(); ++i) {
        const std::size_t at = static_cast<std::size_t>(begin) + i;
        out[i] = at < values_.size() ? values_[at] : 0.0F;
      }
    }

   private:
    std::span<const float> values_;
  };

  // Memory for kernels, in whole cache lines.
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes{};
  };
  class Lines {
   public:
    explicit Lines(std::size_t bytes = 0) : lines_((bytes + sizeof(Line) - 1) / sizeof(Line)) {}
    std::span<std::byte> span() { return std::as_writable_bytes(std::span(lines_)); }

   private:
    std::vector<Line> lines_;
  };

  struct Rank {
    Rank(const ModelConfig& config, const TensorSplit& split, const Setting& setting,
         std::size_t number)
        : unit(number),
          compute(config, parameter_layout(config, 1, split),
                  {DType::kF32, setting.batch, split, setting.dropout_seed}, cpu_kernels()) {
      const ComputeModel whole = compute.model(1, 1);
      model = whole.units.at(unit);
      const auto parameter_bytes =
          static_cast<std::size_t>(whole.groups.at(unit).padded_elements) * sizeof(float);
      make(Role::kParameters, parameter_bytes);
      make(Role::kGradient, parameter_bytes);
      for (const Role role :
           {Role::kHidden, Role::kHiddenOut, Role::kHiddenGradient, Role::kHiddenGradientOut}) {
        make(role, whole.hidden_bytes);
      }
      make(Role::kTokens, whole.tokens_bytes);
      make(Role::kSaved, model.saved_bytes);
      make(Role::kConstants, whole.constants_bytes);
      make(Role::kWorkspace, whole.workspace_bytes);
      std::ranges::copy(compute.constants(), of(Role::kConstants).begin());
      for (const BetweenBuffer& buffer : model.between) {
        between.emplace_back(buffer.size_bytes);
      }
    }

    void make(Role role, std::size_t bytes) {
      buffers[static_cast<std::size_t>(role)] = Lines(bytes);
    }
    const UnitLayout& layout() const { return compute.layout().at(unit); }
    std::span<std::byte> bytes(Role role) { return buffers[static_cast<std::size_t>(role)].span(); }
    std::span<float> of(Role role) {
      return {reinterpret_cast<float*>(bytes(role).data()), bytes(role).size() / sizeof(float)};
    }
    // Returns the numbers that an exchange reads or writes.
    std::span<float> of(const UnitAccess& access) {
      std::span<std::byte> all = access.role == Role::kBetween
                                     ? between.at(static_cast<std::size_t>(access.number)).span()
                                     : bytes(access.role);
      all = all.subspan(access.offset);
      if (access.size_bytes != 0) all = all.first(access.size_bytes);
      return {reinterpret_cast<float*>(all.data()), all.size() / sizeof(float)};
    }
    void run(UnitGraph::Where where, WorkerArena& workers) {
      std::vector<std::byte*> pointers;
      for (Lines& buffer : between) pointers.push_back(buffer.span().data());
      UnitMemory memory;
      for (std::size_t role = 0; role < kRoleCount; ++role) {
        memory.buffers[role] = buffers[role].span().data();
      }
      memory.between = pointers;
      KernelContext context;
      context.workers = &workers;
      context.workspace = bytes(Role::kWorkspace);
      where.unit = static_cast<std::int64_t>(unit);
      compute.run(context, where, memory);
    }

    std::size_t unit;
    UnitCompute compute;
    UnitModel model;
    std::array<Lines, kRoleCount> buffers;
    std::vector<Lines> between;
  };

  void run(UnitGraph::Pass pass) {
    const UnitModel& unit = model();
    const std::vector<UnitStep>& steps = pass == UnitGraph::Pass::kForward     ? unit.forward
                                         : pass == UnitGraph::Pass::kRecompute ? unit.recompute
                                                                               : unit.backward;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      if (steps[s].kind != UnitStep::Kind::kCompute) {
        exchange(steps[s]);
        continue;
      }
      for (const auto& rank : ranks_) rank->run({pass, static_cast<std::int32_t>(s)}, workers_);
    }
  }

  void exchange(const UnitStep& step) {
    std::vector<std::vector<float>> sources;
    for (const auto& rank : ranks_) {
      const std::span<float> source = rank->of(step.reads.front());
      sources.emplace_back(source.begin(), source.end());
    }
    std::vector<float> all;
    if (step.kind == UnitStep::Kind::kGather) {
      for (const auto& source : sources) all.insert(all.end(), source.begin(), source.end());
    } else {
      all = sources.front();
      for (std::size_t r = 1; r < sources.size(); ++r) {
        for (std::size_t i = 0; i < all.size(); ++i) all[i] += sources[r][i];
      }
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const std::span<float> target = ranks_[r]->of(step.writes.front());
      const bool is_part = target.size() < all.size();
      const auto begin = static_cast<std::ptrdiff_t>(is_part ? r * target.size() : 0);
      std::copy_n(all.begin() + begin, target.size(), target.begin());
    }
  }

  // Fills the list of the rows' samples, if the batch has it.
  void number_samples(std::span<std::byte> tokens) const {
    const std::int64_t place = setting_.batch.place_of(RowNumbers::kSamples);
    if (place < 0) return;
    auto* const list =
        reinterpret_cast<std::int32_t*>(tokens.data()) + place * setting_.batch.rows();
    for (std::int64_t row = 0; row < setting_.batch.rows(); ++row) {
      const auto sample = static_cast<std::int32_t>(row / setting_.batch.positions);
      list[row] = setting_.first_sample < 0 ? -1 : setting_.first_sample + sample;
    }
  }

  // Gives each rank its rows, or all of them.
  void share_rows(std::span<const float> all, Role role) {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const std::size_t count = all.size() / (setting_.shares_rows ? ranks_.size() : 1);
      const std::size_t begin = setting_.shares_rows ? r * count : 0;
      std::ranges::copy(all.subspan(begin, count), ranks_[r]->of(role).begin());
    }
  }
  std::vector<float> all_rows(Role role) {
    const std::size_t own = hidden_elements_ / (setting_.shares_rows ? ranks_.size() : 1);
    std::vector<float> all;
    for (const auto& rank : ranks_) {
      const std::span<float> rows = rank->of(role).first(own);
      all.insert(all.end(), rows.begin(), rows.end());
      if (!setting_.shares_rows) break;
    }
    return all;
  }

  std::vector<UnitLayout> whole_;
  std::size_t unit_;
  Setting setting_;
  std::size_t hidden_elements_;
  WorkerArena workers_{1};
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace terrace
