#include "runtime/bench/optimizer_bench.h"

#include <fmt/format.h>

#include <array>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/philox.h"
#include "kernels/cpu/cpu_kernels.h"
#include "runtime/bench/bench_list.h"
#include "runtime/model/parameter_layout.h"

namespace terrace {
namespace {

constexpr std::int64_t kGrain = 16 * 1024;
const HostMemoryOptions kPages = {};  // as the arenas of training

// Normal numbers of a size, the same in every run.
void fill_normal(std::span<float> out, float size, std::uint32_t stream, WorkerArena& workers) {
  const auto count = static_cast<std::int64_t>(out.size());
  workers.parallel_for((count + kGrain - 1) / kGrain, [&](std::int64_t task, int) {
    for (std::int64_t i = task * kGrain; i < std::min(count, (task + 1) * kGrain); ++i) {
      const auto words = philox({1}, {static_cast<std::uint64_t>(i), stream, 0});
      out[static_cast<std::size_t>(i)] = size * normal_from_bits(words[0], words[1]);
    }
  });
}

std::span<float> floats(HostMemory& memory) {
  return {reinterpret_cast<float*>(memory.bytes().data()), memory.bytes().size() / sizeof(float)};
}

double rate(double bytes, std::int64_t begin_ns) {
  return bytes / static_cast<double>(SystemClock().now_ns() - begin_ns);
}

}  // namespace

UpdateLoad::UpdateLoad(const UpdateForm& form, std::int64_t elements, int threads)
    : format_(form.state),
      elements_(elements),
      workers_(threads),
      gradient_(static_cast<std::size_t>(elements) * sizeof(float), kPages),
      parameter_(static_cast<std::size_t>(elements) * sizeof(Bf16), kPages),
      state_(format_.bytes(elements), kPages) {
  context_.workers = &workers_;
  scalars_.learning_rate = 3e-4F;
  scalars_.bias_correction_1 = 0.5F;
  scalars_.bias_correction_2 = 0.5F;
  fill_normal(floats(gradient_), 0.1F, 0, workers_);
  std::ranges::fill(state_.bytes(), std::byte{0});
  std::ranges::fill(parameter_.bytes(), std::byte{0});
  for (int step = 0; step < 3; ++step) update();  // from zeros to what training has
}

double UpdateLoad::update() {
  const std::int64_t begin_ns = SystemClock().now_ns();
  AdamWUpdate update;
  update.gradient = view(gradient_.bytes().data(), DType::kF32, elements_);
  update.parameter = view(parameter_.bytes().data(), DType::kBF16, elements_);
  set_state_views(update, format_, state_.bytes().data(), elements_);
  update.options.weight_decay = 0.1F;
  update.scalars = &scalars_;
  ++scalars_.step;
  adamw_cpu(context_, update);
  return rate(traffic_bytes(), begin_ns);
}

double UpdateLoad::stream(const StreamForm& form) {
  const std::int64_t begin_ns = SystemClock().now_ns();
  stream_pass(context_, arrays(), elements_, form);
  return rate(traffic_bytes(), begin_ns);
}

double UpdateLoad::traffic_bytes() const {
  double bytes = 0;
  for (const StreamedArray& array : arrays()) bytes += array.traffic_bytes(elements_);
  return bytes;
}

// Scales of blocks, a hundredth of the least that is moved, are left out.
std::array<StreamedArray, 5> UpdateLoad::arrays() const {
  using Access = StreamedArray::Access;
  const StateLayout layout = format_.layout(elements_);
  const auto part = [&](const StatePart& part) {
    return StreamedArray{state_.bytes().data() + part.begin, size_of(part.dtype), Access::kUpdate};
  };
  return {{{gradient_.bytes().data(), sizeof(float), Access::kRead},
           part(layout.moment1),
           part(layout.moment2),
           part(layout.master),
           {parameter_.bytes().data(), sizeof(Bf16),
            format_.reads_parameter() ? Access::kUpdate : Access::kWrite}}};
}

namespace {

// Loops that do the same: some processors are quicker where nothing is asked for.
constexpr StreamForm kAsking = {};
constexpr StreamForm kNotAsking = {.asks_ahead = false};

// Of an update or a kernel, and of both loops in this order.
BenchResult held_against_loops(const std::string& name, std::span<const Measurement> measurements,
                               const std::string& loop_is, int rounds) {
  const std::vector<Samples> samples = interleave(measurements, rounds);
  const std::size_t best = highest_of(std::span(samples).subspan(1));
  return {.name = name,
          .value = samples[0],
          .limit = samples[1 + best],
          .limit_is = loop_is + (best == 0 ? ", prefetching" : ", without prefetching")};
}

BenchResult bench_update(const UpdateForm& form, std::int64_t elements,
                         const BenchOptions& options) {
  UpdateLoad load(form, elements, options.threads);
  const std::vector<Measurement> measurements = {[&] { return load.update(); },
                                                 [&] { return load.stream(kAsking); },
                                                 [&] { return load.stream(kNotAsking); }};
  BenchResult result = held_against_loops(
      form.name, measurements, "a loop that only streams the same bytes, the same threads",
      options.repetitions);
  const double bytes_per_parameter = load.traffic_bytes() / static_cast<double>(elements);
  result.details = {{"bytes per parameter", fmt::format("{:.0f}", bytes_per_parameter)},
                    {"time per parameter",
                     fmt::format("{:.3f} ns", bytes_per_parameter / result.value.median())}};
  return result;
}

// The gradient's sums of squares, which an update waits for.
BenchResult bench_norm(std::int64_t elements, const BenchOptions& options) {
  WorkerArena workers(options.threads);
  KernelContext context;
  context.workers = &workers;
  HostMemory gradient(static_cast<std::size_t>(elements) * sizeof(float), kPages);
  fill_normal(floats(gradient), 0.1F, 0, workers);
  std::vector<double> partials(static_cast<std::size_t>(elements / kBlockElements));
  const auto bytes = static_cast<double>(gradient.bytes().size());
  const StreamedArray read = {gradient.bytes().data(), sizeof(float), StreamedArray::Access::kRead};
  const auto read_all = [&](const StreamForm& form) {
    const std::int64_t begin_ns = SystemClock().now_ns();
    stream_pass(context, {&read, 1}, elements, form);
    return rate(bytes, begin_ns);
  };
  const std::vector<Measurement> measurements = {
      [&] {
        const std::int64_t begin_ns = SystemClock().now_ns();
        cpu_kernels().norm_partials(context, {view(floats(gradient)), view(std::span(partials))});
        return rate(bytes, begin_ns);
      },
      [&] { return read_all(kAsking); }, [&] { return read_all(kNotAsking); }};
  return held_against_loops("norm", measurements,
                            "a loop that only reads the gradient, the same threads",
                            options.repetitions);
}

constexpr std::int64_t kUsualElements = std::int64_t{48} * 1024 * 1024;

}  // namespace

std::vector<BenchResult> bench_optimizer(const BenchOptions& options, Log& log) {
  check_streamed_update(options, log);
  // Gradient, parameter and the largest state take 18 bytes an element.
  const auto wanted = static_cast<std::int64_t>(options.bytes) / 18;
  const std::int64_t usual = options.small ? 64 * kBlockElements : kUsualElements;
  const std::int64_t elements = round_up(options.bytes == 0 ? usual : wanted, kBlockElements);
  log.info(fmt::format("bench optimizer: {} parameters, {} threads, {} rounds", elements,
                       options.threads, options.repetitions));
  std::vector<BenchResult> results;
  for (const UpdateForm& form : update_forms()) {
    results.push_back(bench_update(form, elements, options));
  }
  results.push_back(bench_norm(elements, options));
  results.push_back(bench_streamed_update(options, log));
  return results;
}

}  // namespace terrace
