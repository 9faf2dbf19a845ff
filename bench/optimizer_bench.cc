#include "bench/optimizer_bench.h"

#include <fmt/format.h>

#include <array>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/philox.h"
#include "bench/bench_list.h"
#include "bench/bench_only.h"
#include "kernels/cpu/cpu_kernels.h"
#include "runtime/model/parameter_layout.h"

namespace terrace {
namespace {

constexpr std::int64_t kGrain = 16 * 1024;
constexpr const char* kNorm = "norm";
constexpr const char* kStreamed = "streamed_update";
const HostMemoryOptions kPages = {};  // as the arenas of training

// Fills `out` with normal numbers of this size, the same in every run.
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
    : rule_(*form.rule),
      format_(form.state),
      elements_(elements),
      workers_(threads),
      gradient_(static_cast<std::size_t>(elements) * sizeof(float), kPages),
      parameter_(static_cast<std::size_t>(elements) * sizeof(Bf16), kPages),
      state_(format_.bytes(elements), kPages) {
  context_.workers = &workers_;
  scalars_.learning_rate = 3e-4F;
  scalars_.of_rule = rule_.step_scalars(standard_options(rule_), 10, 3e-4);
  fill_normal(floats(gradient_), 0.1F, 0, workers_);
  std::ranges::fill(state_.bytes(), std::byte{0});
  std::ranges::fill(parameter_.bytes(), std::byte{0});
  for (int step = 0; step < 3; ++step) update();  // from zeros to numbers as in training
}

double UpdateLoad::update() {
  const std::int64_t begin_ns = SystemClock().now_ns();
  ParameterUpdate update;
  update.gradient = view(gradient_.bytes().data(), DType::kF32, elements_);
  update.parameter = view(parameter_.bytes().data(), DType::kBF16, elements_);
  set_state_views(update, format_, state_.bytes().data(), elements_);
  update.options = standard_options(rule_);
  update.options.weight_decay = 0.1F;
  update.scalars = &scalars_;
  ++scalars_.step;
  rule_.cpu(context_, update);
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

// Returns the arrays that an update moves. Scales of blocks are left out: they are a hundredth of
// the least that is moved.
std::vector<StreamedArray> UpdateLoad::arrays() const {
  using Access = StreamedArray::Access;
  const StateLayout layout = format_.layout(elements_);
  const auto part = [&](const StatePart& part) {
    return StreamedArray{state_.bytes().data() + part.begin, size_of(part.dtype), Access::kUpdate};
  };
  std::vector<StreamedArray> arrays = {{gradient_.bytes().data(), sizeof(float), Access::kRead}};
  for (std::size_t slot = 0; slot < format_.slot_count; ++slot) {
    arrays.push_back(part(layout.slots.at(slot)));
  }
  arrays.push_back(part(layout.master));
  arrays.push_back({parameter_.bytes().data(), sizeof(Bf16),
                    format_.reads_parameter() ? Access::kUpdate : Access::kWrite});
  return arrays;
}

namespace {

// Two loops that do the same: some processors are quicker without prefetching.
constexpr StreamForm kAsking = {};
constexpr StreamForm kNotAsking = {.asks_ahead = false};

// Makes a result. The samples are of an update or a kernel, then of both loops in this order.
BenchResult held_against_loops(const std::string& name, const std::vector<Samples>& samples,
                               const std::string& loop_is) {
  const std::size_t best = highest_of(std::span(samples).subspan(1));
  return {.name = name,
          .value = samples[0],
          .limit = samples[1 + best],
          .limit_is = loop_is + (best == 0 ? ", prefetching" : ", without prefetching")};
}

void bench_update(const UpdateForm& form, std::int64_t elements, const BenchOptions& options,
                  const Rounds& rounds, BenchRecord& record) {
  UpdateLoad load(form, elements, options.threads);
  const std::vector<Measurement> measurements = {[&] { return load.update(); },
                                                 [&] { return load.stream(kAsking); },
                                                 [&] { return load.stream(kNotAsking); }};
  const double bytes_per_parameter = load.traffic_bytes() / static_cast<double>(elements);
  interleave(measurements, rounds, [&](const std::vector<Samples>& samples) {
    BenchResult result = held_against_loops(
        form.name, samples, "a loop that only streams the same bytes, the same threads");
    result.details = {number_detail("bytes_per_parameter", "bytes", bytes_per_parameter),
                      {"time_per_parameter", "s", samples[0].mapped([&](double gb_per_s) {
                         return bytes_per_parameter / (gb_per_s * 1e9);
                       })}};
    record.put(std::move(result));
  });
}

// Measures the gradient's sums of squares, which an update waits for.
void bench_norm(std::int64_t elements, const BenchOptions& options, const Rounds& rounds,
                BenchRecord& record) {
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
  interleave(measurements, rounds, [&](const std::vector<Samples>& samples) {
    record.put(held_against_loops(kNorm, samples,
                                  "a loop that only reads the gradient, the same threads"));
  });
}

// The bytes of gradient, parameter and the largest state.
constexpr std::size_t kBytesPerElement = 18;

std::int64_t elements_of(const BenchOptions& options) {
  constexpr std::int64_t kUsualElements = std::int64_t{48} * 1024 * 1024;
  const auto wanted = static_cast<std::int64_t>(options.bytes / kBytesPerElement);
  const std::int64_t usual = options.small ? 64 * kBlockElements : kUsualElements;
  return round_up(options.bytes == 0 ? usual : wanted, kBlockElements);
}

// Estimates the seconds of all updates. An element has some 30 bytes to move in each of three
// measurements a round. Its first numbers are drawn at random, which takes as long as a few
// measurements. The norm is short.
double seconds_of_updates(std::int64_t elements, int rounds, const BenchOptions& options,
                          const MachineSpeed& speed) {
  constexpr double kMeasurements = 3;
  constexpr double kMoved = 30;
  constexpr double kToBegin = 12;
  const double pass_s = kMoved * static_cast<double>(elements) / speed.copy_bytes_per_s;
  double forms = is_wanted(options, kNorm) ? 0.2 : 0;
  for (const UpdateForm& form : update_forms()) forms += is_wanted(options, form.name) ? 1 : 0;
  return forms * pass_s * (kMeasurements * rounds + kToBegin);
}

}  // namespace

std::vector<std::string> names_of_optimizer(const BenchOptions& /*options*/) {
  std::vector<std::string> names;
  for (const UpdateForm& form : update_forms()) names.emplace_back(form.name);
  names.insert(names.end(), {kNorm, kStreamed});
  return names;
}

BenchCost cost_of_optimizer(const BenchOptions& options, const MachineSpeed& speed) {
  BenchCost cost;
  if (is_wanted(options, kStreamed)) cost = cost_of_streamed_update(options, speed);
  cost.seconds += seconds_of_updates(elements_of(options), options.repetitions, options, speed);
  return cost;
}

// Fits three rounds into a quarter of the time, with more memory than caches hold.
void fit_optimizer(BenchOptions& options, const MachineSpeed& speed) {
  constexpr std::int64_t kLeast = std::int64_t{4} * 1024 * 1024;
  constexpr int kRounds = 3;
  const std::int64_t all = elements_of(options);
  const double all_s = seconds_of_updates(all, kRounds, options, speed);
  if (all_s == 0) return;
  const double part = *options.time_limit_s / 4 / all_s;
  const auto fitting = static_cast<std::int64_t>(part * static_cast<double>(all));
  const std::int64_t elements = std::clamp(fitting, std::min(all, kLeast), all);
  options.bytes = static_cast<std::size_t>(elements) * kBytesPerElement;
}

void bench_optimizer(const BenchOptions& options, BenchRecord& record, Log& log) {
  record.expect(names_of_optimizer(options));
  auto parts_left = static_cast<double>(wanted_of(options, names_of_optimizer(options)).size());
  const bool streams = is_wanted(options, kStreamed);
  if (streams) check_streamed_update(options, log);
  const std::int64_t elements = elements_of(options);
  log.info(fmt::format("bench optimizer: {} parameters, {} threads, {} rounds", elements,
                       options.threads, options.repetitions));
  const auto next_rounds = [&] {
    record.check_time();
    return record.rounds(options.repetitions, 1 / parts_left--);
  };
  for (const UpdateForm& form : update_forms()) {
    if (!is_wanted(options, form.name)) continue;
    const Rounds rounds = next_rounds();
    bench_update(form, elements, options, rounds, record);
  }
  if (is_wanted(options, kNorm)) bench_norm(elements, options, next_rounds(), record);
  if (!streams) return;
  record.check_time();
  bench_streamed_update(options, record, log);
}

}  // namespace terrace
