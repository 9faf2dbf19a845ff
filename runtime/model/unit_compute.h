#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/model/decoder_units.h"
#include "runtime/model/step_compute.h"
#include "runtime/model/unit_graph.h"
#include "runtime/model/unit_model.h"

// What the units of a model compute. Nothing here moves, allocates or waits: all memory is given.
namespace terrace {

class UnitCompute final : public StepCompute {
 public:
  // `layout` is parameter_layout(config), or that of the part that `split` says. Borrows the table.
  struct Options {
    DType compute_type = DType::kBF16;
    BatchShape batch;
    TensorSplit split;
  };
  UnitCompute(const ModelConfig& config, std::vector<UnitLayout> layout, const Options& options,
              const KernelTable& kernels);

  void run(const KernelContext& context, const ComputeTask& task,
           const UnitMemory& memory) override;
  // A compute step of a unit, as model() numbers them.
  void run(const KernelContext& context, std::int64_t unit, const UnitGraph::Where& where,
           const UnitMemory& memory) const;
  // Of all micro-batches: tokens point to the first; one gradient of all rows each. `views` is room
  // for kEmbeddingViews a micro-batch, of the host: nothing is allocated in a step.
  void embedding_backward(const KernelContext& context, const UnitMemory& memory,
                          std::span<std::byte* const> hidden_gradients,
                          std::span<TensorView> views) const;

  // Makes what kernels of these shapes need (KernelTable::prepare_attention), so that no step has
  // to. The context needs no workspace.
  void prepare(const KernelContext& context) const;

  // What the passes need to know. `workers` of the compute lane decide the workspace.
  ComputeModel model(std::int32_t micro_batches, int workers) const;

  // The rotary tables, one behind the other, each [T, D] in fp32, with T the batch's table
  // positions; empty where there are none, and where the micro-batches bring the angles.
  std::vector<float> constants() const;
  // The same with the frequencies of sequences of `length` positions.
  std::vector<float> constants(std::int64_t length) const;
  // Bytes of the lists of numbers of one micro-batch.
  std::size_t tokens_bytes() const;
  const BatchShape& batch() const { return part_.batch; }
  const std::vector<UnitLayout>& layout() const { return part_.layout; }
  DType compute_type() const { return part_.compute_type; }

 private:
  const UnitGraph& graph_of(std::int64_t unit) const {
    return graphs_.at(graph_numbers_.at(static_cast<std::size_t>(unit)));
  }
  std::size_t workspace_bytes(std::int32_t micro_batches, int workers) const;
  std::size_t rope_tables() const;
  std::size_t rope_table_elements() const;  // of one

  DecoderPart part_;
  const KernelTable& kernels_;
  std::vector<UnitGraph> graphs_;           // units that are alike share one
  std::vector<std::size_t> graph_numbers_;  // by unit
};

}  // namespace terrace
