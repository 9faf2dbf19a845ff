#include <fmt/format.h>

#include <algorithm>

#include "bench/bench_list.h"
#include "bench/bench_only.h"
#include "bench/device_limits.h"
#include "bench/kernel_cases.h"
#include "runtime/model/model_shape.h"
#include "runtime/model/parameter_layout.h"

namespace terrace {
namespace {

constexpr double kCopyGoal = 0.85;  // of kernels that only move bytes

// A model's kernels, on activations that are too large for any cache of a GPU.
struct DeviceKernelScene {
  const char* preset;
  const char* prefix;
  BatchShape batch;
  ModelShape shape = {};  // changes to the preset
};

std::vector<DeviceKernelScene> device_kernel_scenes(const BenchOptions& options) {
  if (options.small) {
    return {{"nano", "nano_bf16", {2, 32}},
            {"gpt2-124m", "gpt2_124m_bf16", {1, 16}, {.vocabulary = 512}}};
  }
  return {{"gpt2-124m", "gpt2_124m_bf16", {32, 1024}}, {"llama-1b", "llama_1b_bf16", {16, 2048}}};
}

ModelConfig model_of(const DeviceKernelScene& scene) {
  return with_shape(load_model_config(scene.preset), scene.shape);
}

BenchResult result_of(const std::string& name, const KernelCase& kernel, const DeviceLimits& limits,
                      const std::vector<Samples>& samples) {
  const bool is_product = kernel.is_product();
  const double work = is_product ? kernel.flops * 1e-12 : kernel.bytes * 1e-9;
  BenchResult result = {
      .name = name,
      .unit = is_product ? BenchUnit::kTeraflopsPerSecond : BenchUnit::kGigabytesPerSecond,
      .value = samples[0],
      .limit = samples[1],
      .limit_is = is_product ? limits.product_is() : limits.copy_is(),
      .details = {{"call", "s", samples[0].mapped([work](double rate) { return work / rate; })}}};
  if (!is_product) result.goal = kCopyGoal;
  if (!kernel.by.empty()) result.notes.push_back({"by", kernel.by});
  return result;
}

// A device, and its limits.
struct LimitedDevice {
  CaseDevice& device;
  DeviceLimits& limits;
};

void measure(const std::string& name, const KernelCase& kernel, const LimitedDevice& on,
             const BenchOptions& options, BenchRecord& record) {
  DeviceLimits& limits = on.limits;
  const bool is_product = kernel.is_product();
  const double work = is_product ? kernel.flops : kernel.bytes;
  const double unit = is_product ? 1e-12 : 1e-9;
  DeviceRate rate(on.device, {.is = name, .amount = work, .enqueue = kernel.run},
                  options.seconds / 10);
  const std::vector<Measurement> both = {
      [&] { return unit * rate.measure(); },
      [&] { return unit * (is_product ? limits.product() : limits.copy()); }};
  interleave(both, record.rounds(options.repetitions), [&](const std::vector<Samples>& samples) {
    record.put(result_of(name, kernel, limits, samples));
  });
}

KernelSetting setting_of(const DeviceKernelScene& scene, CaseDevice* device) {
  return {.model = model_of(scene), .batch = scene.batch, .type = DType::kBF16, .device = device};
}

std::vector<KernelCaseMaker> makers_of(const KernelSetting& setting, const BenchOptions& options) {
  const std::int64_t elements = (options.small ? 4 : 12 * 1024) * kBlockElements;
  std::vector<KernelCaseMaker> makers = product_cases(setting);
  for (const auto& more : {element_cases(setting), state_cases(setting, elements)}) {
    makers.insert(makers.end(), more.begin(), more.end());
  }
  return makers;
}

std::string result_name(const DeviceKernelScene& scene, const KernelCaseMaker& maker) {
  return fmt::format("{}_{}", scene.prefix, maker.name);
}

}  // namespace

std::vector<std::string> names_of_device_kernel(const BenchOptions& options) {
  CaseDevice device(*options.device, options.device->capacity_bytes);
  std::vector<std::string> names;
  for (const DeviceKernelScene& scene : device_kernel_scenes(options)) {
    const KernelSetting setting = setting_of(scene, &device);
    for (const KernelCaseMaker& maker : makers_of(setting, options)) {
      names.push_back(result_name(scene, maker));
    }
  }
  return names;
}

void bench_device_kernel(const BenchOptions& options, BenchRecord& record, Log& log) {
  record.expect(names_of_device_kernel(options));
  CaseDevice device(*options.device, options.device->capacity_bytes);
  DeviceLimits limits(device, DType::kBF16, options.seconds / 10, options.small);
  for (const DeviceKernelScene& scene : device_kernel_scenes(options)) {
    log.info(fmt::format("bench kernel: {}, {} in bf16, {} x {} tokens, {} rounds",
                         options.device->description, scene.preset, scene.batch.sequences,
                         scene.batch.positions, options.repetitions));
    const KernelSetting setting = setting_of(scene, &device);
    for (const KernelCaseMaker& maker : makers_of(setting, options)) {
      if (!is_wanted(options, result_name(scene, maker))) continue;
      record.check_time();
      measure(result_name(scene, maker), maker.make(), {device, limits}, options, record);
    }
  }
}

}  // namespace terrace
