#include "runtime/model/dropout.h"

#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/philox.h"
#include "runtime/model/adapter.h"

namespace terrace {
namespace {

constexpr std::uint32_t kKeyStream = 0x64726f70U;

// Returns Dropout::threshold: random words below it drop their element.
std::uint32_t threshold_of(double probability) {
  const double threshold = std::round(probability * 0x1p32);
  TERRACE_CHECK(0 <= threshold && threshold < 0x1p32);
  return static_cast<std::uint32_t>(threshold);
}

}  // namespace

std::uint64_t dropout_key(std::uint64_t seed) {
  const auto words = philox({seed}, {0, kKeyStream, 0});
  return words[0] + (static_cast<std::uint64_t>(words[1]) << 32U);
}

Dropout dropout_of(double probability) {
  Dropout op;
  op.threshold = threshold_of(probability);
  op.factor = static_cast<float>(1 / (1 - probability));
  return op;
}

bool has_dropout(const LayerSite& site) {
  return site.config.adapter.dropout > 0 && site.batch.has_samples;
}

TensorId drop(const LayerSite& site, const DropoutPlace& place, TensorId x, TensorId y) {
  const TensorId samples = site.numbers(RowNumbers::kSamples);
  Dropout op = dropout_of(site.config.adapter.dropout);
  op.positions = site.batch.positions;
  op.first_column = place.first_column;
  op.seed = site.dropout_key;
  UnitCall call;
  call.reads = {x, samples};
  call.writes = {y};
  call.run = [=, layer = place.layer](const UnitRun& run) {
    Dropout now = op;
    now.x = run.view(x);
    now.y = run.view(y);
    now.samples = run.view(samples);
    now.stream = static_cast<std::uint32_t>(run.unit) * kLayerNumbers + layer;
    run.kernels.dropout(run.context, now);
  };
  site.graph.call(std::move(call));
  return y;
}

}  // namespace terrace
