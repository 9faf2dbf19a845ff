#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/checkpoint/adapter_directory.h"
#include "runtime/checkpoint/weight_types.h"
#include "runtime/config/train_options.h"
#include "runtime/engine/training_state.h"

// The part of a model that a run trains: all of it, the tensors that --trainable names, or an
// adapter.
namespace terrace {

// The state that a run starts from: a model's parameters, and an adapter's parameters from a
// directory, or random ones.
class StartState final : public StateSource {
 public:
  // Borrows both; `adapter` may be null.
  StartState(const StateSource& base, const AdapterDirectory* adapter, std::uint64_t seed)
      : base_(base), adapter_(adapter), random_(seed) {}
  // `unit` is of the layout of the whole model, in which nothing is quantised.
  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override;
  bool has_slots() const override { return false; }

 private:
  void read_norms(const UnitLayout& unit, const ParameterTensor& weight, std::int64_t first_row,
                  std::span<float> norms) const;

  const StateSource& base_;
  const AdapterDirectory* const adapter_;
  const RandomState random_;
};

struct TunedModel {
  ModelConfig config;                         // says what trains
  std::string base_model;                     // the model's directory or name, as an adapter has it
  std::uint64_t seed = 0;                     // of a new adapter
  std::unique_ptr<AdapterDirectory> adapter;  // of --adapter
  std::vector<std::string> doubts;            // about it, as sentences

  // Returns the model as `base` has it, borrowed, and the adapter as it starts.
  StartState start(const StateSource& base) const { return {base, adapter.get(), seed}; }
  // Returns the types of final/: the type of --save-dtype if it is given. Otherwise an adapter has
  // fp32, as in PEFT, and a model has the types that result_types_for() returns.
  WeightTypes types_of(const TrainOptions& options, const std::optional<WeightTypes>& loaded,
                       DType compute_type) const;
};

// Returns the model as the options tune it. Throws ConfigError for a model, tensors or an adapter
// that do not exist or are not supported, and for flags that contradict a given adapter.
TunedModel tuned_model(const ModelOptions& options);

}  // namespace terrace
