#include "runtime/plan/step_flops.h"

#include <array>
#include <cctype>

namespace terrace {
namespace {

// Returns whether `text` has `word` with neither a letter nor a digit beside it.
bool has_word(std::string_view text, std::string_view word) {
  const std::size_t at = text.find(word);
  if (at == std::string_view::npos) return false;
  const auto is_apart = [&](std::size_t place) {
    return place >= text.size() || std::isalnum(static_cast<unsigned char>(text[place])) == 0;
  };
  return (at == 0 || is_apart(at - 1)) && is_apart(at + word.size());
}

}  // namespace

StepFlops flops_of_step(const Program& program, const StepModel& model) {
  StepFlops flops;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    double& sum = op.kind == OpKind::kRecompute ? flops.recomputed : flops.necessary;
    sum += program.times_of(i) * op.cost.flops;
  }
  for (const UnitModel& unit : model.units) {
    flops.masked_halves += unit.masked_flops * model.tensor.ranks * program.micro_batches;
  }
  return flops;
}

std::optional<double> stated_flops_per_s(std::string_view gpu) {
  // From the makers' data sheets. A longer name stands before a name that it contains.
  struct Stated {
    std::string_view name;
    double teraflops_per_s;
  };
  constexpr auto kStated = std::to_array<Stated>(
      {{"B200", 2250},       {"H200", 989.5},     {"H100 NVL", 835.5}, {"H100 PCIe", 756.5},
       {"H100", 989.5},      {"H800", 989.5},     {"A100", 312},       {"A800", 312},
       {"A30", 165},         {"A10G", 70},        {"A10", 125},        {"A40", 149.7},
       {"L40S", 362},        {"L40", 181},        {"L4", 121},         {"RTX 6000 Ada", 364.2},
       {"RTX A6000", 154.8}, {"RTX 5090", 209.5}, {"RTX 4090", 165.2}, {"RTX 3090", 71}});
  for (const Stated& stated : kStated) {
    if (has_word(gpu, stated.name)) return stated.teraflops_per_s * 1e12;
  }
  return std::nullopt;
}

double tokens_at_light(const StepFlops& flops, double tokens, double flops_per_s) {
  return tokens * flops_per_s / flops.necessary;
}

}  // namespace terrace
