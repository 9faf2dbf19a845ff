#include "bench/bench_cost.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "base/error.h"
#include "bench/case_memory.h"
#include "bench/drive_check.h"
#include "bench/usage_clock.h"
#include "kernels/cpu/cpu_kernels.h"
#include "memory/host/host_memory.h"
#include "memory/host/streaming_copy.h"
#include "offload/direct_file.h"
#include "offload/job_directory.h"
#include "runtime/model/parameter_layout.h"

namespace terrace {
namespace {

// Returns the least time of some calls. The first one does not count, since it compiles.
template <typename Body>
double least_seconds(const Body& body) {
  double least_s = 0;
  for (int call = 0; call < 4; ++call) {
    const UsageClock clock;
    body();
    if (call > 0)
      least_s = call == 1 ? clock.wall_seconds() : std::min(least_s, clock.wall_seconds());
  }
  return std::max(least_s, 1e-9);
}

double product_flops_per_s(DType type, WorkerArena& workers) {
  constexpr std::int64_t kRows = 256;
  constexpr std::int64_t kWidth = 768;
  HostCaseMemory memory(workers);
  const MatmulForward op = {.x = memory.tensor(type, kRows, kWidth),
                            .weight = memory.tensor(type, kWidth, kWidth),
                            .bias = {},
                            .y = memory.tensor(type, kRows, kWidth)};
  const KernelContext context =
      memory.context(cpu_kernels().matmul_forward_workspace(op, workers.threads()));
  const double seconds = least_seconds([&] { cpu_kernels().matmul_forward(context, op); });
  return 2.0 * kRows * kWidth * kWidth / seconds;
}

double copy_bytes_per_s() {
  constexpr std::size_t kBytes = 32 * kMiB;
  HostMemory source(kBytes, HostMemoryOptions{});
  HostMemory target(kBytes, HostMemoryOptions{});
  std::ranges::fill(source.bytes(), std::byte{1});
  return kBytes / least_seconds([&] { streaming_copy(target.bytes(), source.bytes()); });
}

// Measures one write after another, as files are filled.
double write_bytes_per_s(const std::string& directory, Log& log) {
  constexpr std::size_t kMost = 64 * kMiB;
  constexpr std::size_t kPiece = 4 * kMiB;
  constexpr double kSeconds = 0.25;
  JobDirectory job(directory, log);
  DirectFile file(job.slot_file());
  job.remove();
  file.preallocate(kMost);
  HostMemory memory(kPiece, HostMemoryOptions{});
  std::ranges::fill(memory.bytes(), std::byte{1});
  const UsageClock clock;
  std::size_t at = 0;
  while (at < kMost && clock.wall_seconds() < kSeconds) {
    const std::int64_t written = file.write_at(memory.bytes(), at);
    if (written <= 0) {
      throw IoError({.operation = "write",
                     .path = directory,
                     .offset = at,
                     .size = kPiece,
                     .error_number = static_cast<int>(-written)});
    }
    at += static_cast<std::size_t>(written);
  }
  return static_cast<double>(at) / std::max(clock.wall_seconds(), 1e-9);
}

}  // namespace

MachineSpeed measure_speed(const BenchOptions& options) {
  WorkerArena workers(options.threads);
  MachineSpeed speed;
  speed.bf16_flops_per_s = product_flops_per_s(DType::kBF16, workers);
  speed.fp32_flops_per_s = product_flops_per_s(DType::kF32, workers);
  speed.copy_bytes_per_s = copy_bytes_per_s();
  return speed;
}

void measure_drives(const BenchOptions& options, MachineSpeed& speed, Log& log) {
  check_drives(options, 0, log);
  speed.drive_write_bytes_per_s = 0;
  for (const std::string& directory : bench_directories(options)) {
    speed.drive_write_bytes_per_s += write_bytes_per_s(directory, log);
  }
  speed.drive_is_known = true;
}

double flops_of_model_step(const ModelConfig& model, std::int64_t tokens) {
  const auto parameters = static_cast<double>(parameter_count(parameter_layout(model)));
  return 6 * parameters * static_cast<double>(tokens);
}

double flops_of_head(const ModelConfig& model, std::int64_t tokens) {
  return 6 * static_cast<double>(model.width) * static_cast<double>(model.vocabulary) *
         static_cast<double>(tokens);
}

double flops_of_unit_kernels(const ModelConfig& model, std::int64_t tokens) {
  const double width = static_cast<double>(model.width);
  const double mixed = static_cast<double>(model.heads * model.head_width);
  const double block =
      width * static_cast<double>(model.qkv_columns() + model.up_columns() + model.intermediate) +
      width * mixed;
  return 6 * block * static_cast<double>(tokens) + flops_of_head(model, tokens);
}

std::string about_text(double seconds) {
  constexpr double kMinute = 60;
  constexpr double kHour = 3600;
  if (seconds < 10) return "about 10 s or less";
  if (seconds < 2 * kMinute) return fmt::format("about {:.0f} s", 10 * std::ceil(seconds / 10));
  if (seconds < 2 * kHour) return fmt::format("about {:.0f} min", std::ceil(seconds / kMinute));
  return fmt::format("about {:.1f} h", seconds / kHour);
}

std::string cost_text(const BenchCost& cost, const BenchOptions& options,
                      const MachineSpeed& speed) {
  std::string text =
      cost.seconds > 0 ? about_text(cost.seconds) : "the duration is not known in advance";
  if (cost.written_bytes > 0) {
    text += fmt::format("; writes about {} to {}", format_size(cost.written_bytes),
                        fmt::join(bench_directories(options), ", "));
    if (!speed.drive_is_known) {
      text += fmt::format(" if the drive writes {}", format_rate(speed.drive_write_bytes_per_s));
    }
  }
  if (!options.time_limit_s) return text + "; --time-limit SECONDS ends it earlier";
  text += fmt::format("; ends after {:g} s", *options.time_limit_s);
  if (options.hurried) text += ", with the results so far";
  return text;
}

}  // namespace terrace
