#include "runtime/bench/bench.h"

#include <array>

#include "base/check.h"
#include "runtime/bench/bench_list.h"

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
     .summary = "the NVMe store against a bare loop, and fio where it is installed",
     .run = bench_io,
     .on_host = {.bytes = true, .drives = true}},
    {.name = "copy",
     .summary = "memory copies, uploads and downloads against a streaming copy; of a GPU against "
                "cudaMemcpyAsync alone",
     .run = bench_copy,
     .on_host = {.bytes = true},
     .on_device = BenchTakes{.bytes = true}},
    {.name = "optimizer",
     .summary = "optimizer updates against a loop that streams the same bytes",
     .run = bench_optimizer,
     .on_host = {.threads = true, .bytes = true, .drives = true}},
    {.name = "kernel",
     .summary = "kernels against the libraries they are made of; of a GPU against its copies and "
                "products",
     .run = bench_kernel,
     .on_host = {.threads = true},
     .on_device = BenchTakes{}},
    {.name = "step",
     .summary = "whole training steps, and what the simulator says of them; on a GPU against their "
                "products at its best rate",
     .run = bench_step,
     .on_host = {.threads = true, .drives = true},
     .on_device = BenchTakes{.threads = true}},
    {.name = "collective",
     .summary = "collectives between threads against copies; under mpirun, between processes "
                "against MPI's own",
     .run = bench_collective,
     .on_host = {.threads = true, .bytes = true}},
    {.name = "simulator",
     .summary = "the part of step that has ten configurations predicted",
     .run = bench_step_predictions,
     .on_host = {.threads = true, .drives = true}},
    {.name = "overlap",
     .summary = "steps with their states on NVMe against the same steps in memory",
     .run = bench_overlap,
     .on_host = {.threads = true, .drives = true}},
});

}  // namespace

std::string_view name_of(BenchUnit unit) { return unit_of(unit).name; }

bool is_rate(BenchUnit unit) { return unit_of(unit).rate; }

double BenchResult::ratio() const {
  const double measured = value.median();
  const double possible = limit.median();
  return is_rate(unit) ? measured / possible : possible / measured;
}

std::span<const Bench> benches() { return kBenches; }

}  // namespace terrace
