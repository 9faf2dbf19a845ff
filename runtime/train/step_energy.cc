#include "runtime/train/step_energy.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

namespace terrace {
namespace {

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

// Returns the lack of the first rank that has one; empty where no rank lacks anything.
std::string first_lack(const RankGroup& ranks, const std::string& lack) {
  if (ranks.world() == nullptr) return lack;
  const std::vector<std::int32_t> lacks =
      of_all_ranks(*ranks.world(), static_cast<std::int32_t>(lack.empty() ? 0 : 1));
  for (std::size_t r = 0; r < lacks.size(); ++r) {
    if (lacks[r] == 0) continue;
    const std::string text = text_of_rank(*ranks.world(), static_cast<int>(r), lack);
    return r == 0 ? text : fmt::format("on the machine of rank {}, {}", r, text);
  }
  return {};
}

std::string joules_text(double joules) {
  if (joules >= 1e6) return fmt::format("{:.4g} MJ", joules * 1e-6);
  if (joules >= 1e3) return fmt::format("{:.4g} kJ", joules * 1e-3);
  return fmt::format("{:.4g} J", joules);
}

}  // namespace

std::optional<double> measured_joules(const RunTotals& totals) {
  const bool has_host = std::isfinite(totals.host_joules);
  const bool has_device = std::isfinite(totals.device_joules);
  if (!has_host && !has_device) return std::nullopt;
  return (has_host ? totals.host_joules : 0) + (has_device ? totals.device_joules : 0);
}

StepEnergy::StepEnergy(const Setting& setting) {
  if (setting.counts_host) host_.emplace(setting.powercap);
  if (!setting.gpu_address.empty()) gpu_.emplace(setting.gpu_address);
}

void StepEnergy::begin(std::int64_t now_ns) {
  RunTotals unused;
  take(now_ns, unused);
}

void StepEnergy::take(std::int64_t now_ns, RunTotals& totals) {
  totals.host_joules = host_ ? host_->take_joules(now_ns).value_or(kNotMeasured) : 0;
  totals.device_joules = gpu_ ? gpu_->take_joules().value_or(kNotMeasured) : kNotMeasured;
}

std::string StepEnergy::describe(const RankGroup& ranks) const {
  const std::string no_host = first_lack(ranks, host_ ? host_->lack() : "");
  const bool has_gpus = ranks.any(gpu_.has_value());
  const std::string no_gpu = first_lack(ranks, gpu_ ? gpu_->lack() : "");
  const bool has_host = no_host.empty();
  if (!has_host && !has_gpus) return "energy is not measured: " + no_host;
  if (!has_host && !no_gpu.empty()) {
    return fmt::format("energy is not measured: {}; GPUs: {}", no_host, no_gpu);
  }
  std::string text = "energy is measured";
  if (has_host) {
    const std::vector<std::string> zones = host_ ? host_->zones() : std::vector<std::string>();
    text += " for the processors";
    if (!zones.empty()) text += fmt::format(" ({})", fmt::join(zones, ", "));
  }
  if (!has_gpus) return text;
  if (no_gpu.empty()) text += has_host ? " and the GPUs" : " for the GPUs";
  if (!no_gpu.empty()) text += fmt::format(", and not for the GPUs: {}", no_gpu);
  if (!has_host) text += fmt::format(", and not for the processors: {}", no_host);
  return text;
}

StepEnergy::Setting energy_setting(const MachineShare& machine) {
  StepEnergy::Setting setting;
  setting.counts_host = machine.is_first_on_host;
  if (const char* const named = std::getenv("TERRACE_POWERCAP")) setting.powercap = named;
  if (machine.gpu) setting.gpu_address = machine.gpu->pci_address;
  return setting;
}

void EnergySum::add(const RunTotals& totals, double step_s, std::int64_t tokens) {
  ++steps_;
  const std::optional<double> joules = measured_joules(totals);
  if (!joules) return;
  ++measured_steps_;
  joules_ += *joules;
  seconds_ += step_s;
  tokens_ += static_cast<double>(tokens);
}

std::string EnergySum::text() const {
  if (joules_ <= 0 || tokens_ <= 0) return {};
  const std::string of_steps =
      measured_steps_ == steps_ ? "" : fmt::format(" in {} of {} steps", measured_steps_, steps_);
  return fmt::format("energy{}: {}, {:.4g} J a token, {:.4g} W", of_steps, joules_text(joules_),
                     joules_ / tokens_, joules_ / seconds_);
}

std::string EnergySum::json() const {
  nlohmann::ordered_json json = {{"measured", measured_}};
  if (joules_ > 0 && tokens_ > 0) {
    json["steps"] = measured_steps_;
    json["seconds"] = seconds_;
    json["joules"] = joules_;
    json["joules_per_token"] = joules_ / tokens_;
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace terrace
