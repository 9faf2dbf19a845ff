#include "tests/golden/golden_sampler.h"

#include "runtime/checkpoint/adapter_directory.h"
#include "runtime/checkpoint/hf_directory.h"

namespace terrace {

GoldenSampler::GoldenSampler(const std::string& directory, std::int64_t positions, Rope rope) {
  std::unique_ptr<AdapterDirectory> adapter;
  if (is_adapter_directory(directory)) adapter = std::make_unique<AdapterDirectory>(directory);
  const std::string model = adapter == nullptr ? directory : adapter->base_model();
  ModelConfig config = load_model_config(model);
  if (adapter != nullptr) config = adapter->adapted(config);
  SilentLog log;
  const HfDirectory weights(model, config, parameter_layout(config), log);
  const auto fetch = [&](const UnitLayout&, const ParameterTensor& tensor, std::int64_t begin,
                         std::span<float> out) {
    if (adapter != nullptr && adapter->has(tensor)) return adapter->read(tensor, begin, out);
    weights.read(tensor, begin, out);
  };
  const TokenSampler::Shape shape = {config, DType::kF32, positions, 1, rope == Rope::kOfEachText};
  sampler_ = std::make_unique<TokenSampler>(shape, fetch);
}

std::span<const float> GoldenSampler::logits_after(std::span<const std::int32_t> ids) {
  return sampler_->logits_after(ids);
}

}  // namespace terrace
