#include "bench/bench.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "bench/bench_list.h"

namespace terrace {
namespace {

struct Unit {
  std::string_view name;
  bool rate;
};

constexpr auto kUnits = std::to_array<Unit>({
    {"GB/s", true},
    {"GFLOP/s", true},
    {"elements/s", true},
    {"tokens/s", true},
    {"s", false},
    {"ms/GB", false},
    {"ns/element", false},
    {"bytes/element", false},
    {"TFLOP/s", true},
});

const Unit& unit_of(BenchUnit unit) { return kUnits.at(static_cast<std::size_t>(unit)); }

constexpr auto kBenches = std::to_array<Bench>({
    {.name = "io",
     .summary = "the NVMe store against a bare loop, and against fio if it is installed",
     .run = bench_io,
     .names = names_of_io,
     .cost = cost_of_io,
     .on_host = {.bytes = true, .drives = true, .grid = true, .seconds = true},
     .fit = fit_io},
    {.name = "copy",
     .summary = "memory copies, uploads and downloads against a streaming copy; on a GPU against "
                "cudaMemcpyAsync alone",
     .run = bench_copy,
     .names = names_of_copy,
     .cost = cost_of_copy,
     .on_host = {.bytes = true},
     .on_device = BenchTakes{.bytes = true},
     .fit = fit_copy},
    {.name = "optimizer",
     .summary = "optimizer updates against a loop that streams the same bytes",
     .run = bench_optimizer,
     .names = names_of_optimizer,
     .cost = cost_of_optimizer,
     .on_host = {.threads = true, .bytes = true, .drives = true},
     .fit = fit_optimizer},
    {.name = "kernel",
     .summary = "kernels against the libraries they are built on; on a GPU against its copies and "
                "matrix products",
     .run = bench_kernel,
     .names = names_of_kernel,
     .cost = cost_of_kernel,
     .on_host = {.threads = true, .seconds = true},
     .on_device = BenchTakes{.seconds = true},
     .fit = fit_kernel},
    {.name = "step",
     .summary = "whole training steps, and the simulator's predictions for them; on a GPU against "
                "their matrix products at its best rate",
     .run = bench_step,
     .names = names_of_step,
     .cost = cost_of_step,
     .on_host = {.threads = true, .drives = true, .ranks = true, .seconds = true},
     .on_device = BenchTakes{.threads = true, .tokens = true, .preset = true}},
    {.name = "collective",
     .summary = "collectives between threads against copies; under mpirun, between processes "
                "against MPI's collectives; under torchrun, over sockets against copies",
     .run = bench_collective,
     .names = names_of_collective,
     .cost = cost_of_collective,
     .on_host = {.threads = true, .bytes = true, .hosts = true, .sizes = true, .seconds = true}},
    {.name = "simulator",
     .summary = "the simulator's predictions of ten step configurations (a part of step)",
     .run = bench_step_predictions,
     .names = step_prediction_names,
     .cost = cost_of_step_predictions,
     .on_host = {.threads = true, .drives = true, .seconds = true}},
    {.name = "overlap",
     .summary = "steps with their states on NVMe against the same steps in memory",
     .run = bench_overlap,
     .names = names_of_overlap,
     .cost = cost_of_overlap,
     .on_host = {.threads = true, .drives = true, .tokens = true}},
});

}  // namespace

std::optional<BenchOptions> quick_options(const BenchOptions& options) {
  constexpr double kQuickSeconds = 0.05;  // of a measurement
  if (!options.hurried || options.small) return std::nullopt;
  BenchOptions quick = options;
  quick.small = true;
  quick.seconds = std::min(quick.seconds, kQuickSeconds);
  return quick;
}

std::string_view name_of(BenchUnit unit) { return unit_of(unit).name; }

bool is_rate(BenchUnit unit) { return unit_of(unit).rate; }

double BenchResult::ratio() const {
  const double measured = value.median();
  const double possible = limit.median();
  return is_rate(unit) ? measured / possible : possible / measured;
}

Samples BenchResult::ratios() const {
  return is_rate(unit) ? ratios_of_rounds(value, limit) : ratios_of_rounds(limit, value);
}

double BenchResult::spread() const {
  double most = std::max(value.spread(), limit.spread());
  if (value.count() == limit.count()) most = std::max(most, ratios().spread());
  return most;
}

std::string snake_name(std::string_view text) {
  std::string name;
  for (const char c : text) {
    const bool is_upper = c >= 'A' && c <= 'Z';
    const bool is_kept = is_upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (is_kept) name += is_upper ? static_cast<char>(c - 'A' + 'a') : c;
    if (!is_kept && !name.empty() && name.back() != '_') name += '_';
  }
  while (name.ends_with('_')) name.pop_back();
  return name;
}

BenchResult::Detail number_detail(std::string name, std::string unit, double value) {
  return {std::move(name), std::move(unit), Samples({value})};
}

std::span<const Bench> benches() { return kBenches; }

}  // namespace terrace
