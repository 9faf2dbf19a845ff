#include "runtime/engine/wire_check.h"

#include <fmt/format.h>

#include <string_view>

#include "base/error.h"

namespace terrace {
namespace {

constexpr std::string_view kOneRank =
    "there is one data-parallel rank, which sends nothing to others";

[[noreturn]] void refuse(const TierRuntimeOptions& options, Option option, WireForm form,
                         std::string_view why, std::string_view remedy) {
  throw ConfigError(
      fmt::format("{} {}: {}", options.placement.name_of_option(option), name_of(form), why),
      fmt::format("{}, or leave it out", remedy));
}

void check_gradients(const StepModel& model, const TierRuntimeOptions& options) {
  const auto refuse_gradients = [&](std::string_view why, std::string_view remedy) {
    refuse(options, Option::kGradientWire, model.wire.gradients, why, remedy);
  };
  if (model.zero.ranks == 1) refuse_gradients(kOneRank, "train with more data-parallel ranks");
  if (!model.zero.of_optimizer()) {
    refuse_gradients(
        "with ZeRO stage 0 every rank keeps the whole sum of the gradients, and no rank decodes a "
        "part of it for the others",
        "use ZeRO stage 1, 2 or 3");
  }
  if (model.measures_noise && model.wire.gradients == WireForm::kInt4) {
    refuse_gradients(
        fmt::format(
            "{} compares the gradients of two sizes of batch, and errors of 4 bits would be "
            "taken for noise",
            options.placement.name_of_option(Option::kGradientNoise)),
        "use int8");
  }
  if (options.placement.reduces_micro_batches) {
    refuse_gradients("ranks add the gradient of every micro-batch, so each would be rounded",
                     "reduce gradients once a step");
  }
}

void check_parameters(const StepModel& model, const TierRuntimeOptions& options) {
  const auto refuse_parameters = [&](std::string_view why, std::string_view remedy) {
    refuse(options, Option::kParameterWire, model.wire.parameters, why, remedy);
  };
  if (model.zero.ranks == 1) refuse_parameters(kOneRank, "train with more data-parallel ranks");
  if (model.wire.parameters == WireForm::kInt4) {
    refuse_parameters("is not built: 4 bits are too few for parameters without error feedback",
                      "use int8");
  }
  if (!model.zero.of_parameters()) {
    refuse_parameters(
        "with ZeRO stages 0 to 2 every rank keeps all parameters, and what it keeps is never coded",
        "use ZeRO stage 3");
  }
  if (model.zero.in_islands(StateClass::kParameters)) {
    refuse_parameters("is not built for parameters that an island of ranks divides",
                      "divide parameters over all ranks");
  }
}

void check_errors(const StepModel& model, const TierRuntimeOptions& options) {
  const std::string_view name = options.placement.name_of_option(Option::kErrorFeedback);
  if (model.wire.gradients == WireForm::kPlain) {
    throw ConfigError(
        fmt::format("{}: gradients are not coded, so codes lose nothing of them", name),
        fmt::format("set {} to int8 or int4, or leave it out",
                    options.placement.name_of_option(Option::kGradientWire)));
  }
  if (model.scales_loss) {
    throw ConfigError(
        fmt::format("{} is not built for fp16: gradients are multiplied by a loss scale that "
                    "changes, and a step may be left out",
                    name),
        "compute with bf16 or fp32, or send gradients as int8 without error feedback");
  }
}

}  // namespace

void check_wire(const StepModel& model, const TierRuntimeOptions& options) {
  if (model.wire.gradients != WireForm::kPlain) check_gradients(model, options);
  if (model.wire.parameters != WireForm::kPlain) check_parameters(model, options);
  if (model.wire.keeps_errors) check_errors(model, options);
}

}  // namespace terrace
