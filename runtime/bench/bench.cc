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
    {"io", "the NVMe store against a bare io_uring loop, and fio where it is installed", bench_io},
    {"copy",
     "memory copies, uploads and downloads against a streaming copy; of a GPU against "
     "cudaMemcpyAsync alone",
     bench_copy, DeviceBench{.takes_bytes = true}},
    {"optimizer", "optimizer updates against a loop that streams the same bytes", bench_optimizer},
    {"kernel",
     "kernels against the libraries they are made of; of a GPU against its copies and products",
     bench_kernel, DeviceBench{}},
    {"step",
     "whole training steps, and what the simulator says of them; on a GPU against their products "
     "at its best rate",
     bench_step, DeviceBench{.takes_threads = true}},
    {"collective",
     "collectives between threads against copies; under mpirun, between processes against MPI's "
     "own",
     bench_collective},
    {"simulator", "the part of step that has ten configurations predicted", bench_step_predictions},
    {"overlap", "steps with their states on NVMe against the same steps in memory", bench_overlap},
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
