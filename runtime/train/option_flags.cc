#include "runtime/train/option_flags.h"

#include <array>

namespace terrace {

std::string_view flag_of_option(Option option) {
  constexpr std::array<std::string_view, kOptionCount> kFlags = {
      "--device-memory",
      "--host-memory",
      "the SIZE of --nvme",
      "--nvme DIR",
      "--threads",
      "--micro-batch-size",
      "--sequence-length",
      "--recompute full",
      "--precision",
      "--tensor-parallel",
      "--sequence-parallel",
      "--learning-rate",
      "--trainable",
      "--validation-fraction 0 and no --validation-data",
      "--base-quantization",
      "--experts-per-group",
      "--router-aux-loss-coef",
      "--router-z-loss-coef",
      "--gradient-accumulation-steps",
      "--gradient-noise-scale",
      "--gradient-wire-dtype",
      "--parameter-wire-dtype",
      "--error-feedback on"};
  return kFlags.at(static_cast<std::size_t>(option));
}

}  // namespace terrace
