#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/model/decoder_units.h"
#include "runtime/model/step_compute.h"
#include "runtime/model/unit_graph.h"
#include "runtime/model/unit_model.h"

// The computation of a model's units. Nothing here moves data, allocates or waits: the caller
// provides all memory.
namespace terrace {

class UnitCompute final : public StepCompute {
 public:
  // `layout` is parameter_layout(config), or the layout of the part that `split` describes. Borrows
  // the table of kernels.
  struct Options {
    DType compute_type = DType::kBF16;
    BatchShape batch;
    TensorSplit split;
    std::uint64_t dropout_seed = 0;      // decides which elements adapters drop
    std::int64_t experts_per_group = 0;  // DecoderPart::experts_per_group
  };
  UnitCompute(const ModelConfig& config, std::vector<UnitLayout> layout, const Options& options,
              const KernelTable& kernels);

  void run(const KernelContext& context, const ComputeTask& task,
           const UnitMemory& memory) override;
  // Runs a compute step of a unit, with the numbers that model() gives the steps.
  void run(const KernelContext& context, const UnitGraph::Where& where,
           const UnitMemory& memory) const;
  // Computes the embedding's backward for all micro-batches. The tokens buffer begins with the
  // first micro-batch; there is one gradient of all rows for each. `views` is room in host memory
  // for kEmbeddingViews views a micro-batch, because a step allocates nothing.
  void embedding_backward(const KernelContext& context, const UnitMemory& memory,
                          std::span<std::byte* const> hidden_gradients,
                          std::span<TensorView> views) const;

  // Returns the costs of a compute step's kernels. Those of the embedding's backward are for all
  // micro-batches of a step, as it is one op.
  std::vector<KernelCost> kernel_costs(const UnitGraph::Where& where,
                                       std::int32_t micro_batches) const;

  // Prepares what kernels of these shapes need (KernelTable::prepare_attention), so that no step
  // has to. The context needs no workspace.
  void prepare(const KernelContext& context) const;

  // Returns what the passes need to know of the model. The number of `workers` of the compute lane
  // decides the size of the workspace.
  ComputeModel model(std::int32_t micro_batches, int workers) const;

  // Returns the rotary tables, one after the other, each [T, D] in fp32, where T is the batch's
  // table positions. The result is empty where there are no tables, and where the micro-batches
  // bring the angles.
  std::vector<float> constants() const;
  // Returns the same tables, with the frequencies of sequences of `length` positions.
  std::vector<float> constants(std::int64_t length) const;
  // Returns the bytes of one micro-batch's lists of numbers.
  std::size_t tokens_bytes() const;
  const BatchShape& batch() const { return part_.batch; }
  const std::vector<UnitLayout>& layout() const { return part_.layout; }
  DType compute_type() const { return part_.compute_type; }

 private:
  const UnitGraph& graph_of(std::int64_t unit) const {
    return graphs_.at(graph_numbers_.at(static_cast<std::size_t>(unit)));
  }
  std::size_t workspace_bytes(std::int32_t micro_batches, int workers) const;
  // Adds the description of a unit to the model, with its groups.
  void add_unit(const UnitLayout& layout, ComputeModel& model) const;
  std::size_t rope_tables() const;
  std::size_t rope_table_elements() const;  // of one table

  DecoderPart part_;
  const KernelTable& kernels_;
  std::vector<UnitGraph> graphs_;           // units that are alike share one
  std::vector<std::size_t> graph_numbers_;  // by unit
};

}  // namespace terrace
