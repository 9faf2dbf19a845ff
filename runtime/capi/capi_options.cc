#include "runtime/capi/capi_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/config/thread_count.h"
#include "runtime/session/session_error.h"

namespace terrace {
namespace {

constexpr std::uint32_t kDirectoriesMost = 64;
constexpr std::int32_t kDimensionsMost = 32;
constexpr std::uint64_t kSavedBytesMost = std::uint64_t{1} << 44;

[[noreturn]] void refuse(const std::string& what, const std::string& remedy) {
  throw SessionError(SessionProblem::kArgument, what, remedy);
}

void check_zero(std::int64_t reserved, const char* what) {
  if (reserved != 0)
    refuse(fmt::format("{} is not 0", what), "set all fields that you do not use to 0");
}

StateTier tier_of(std::int32_t tier) {
  if (tier == TERRACE_TIER_AUTO) return StateTier::kAuto;
  if (tier == TERRACE_TIER_HOST) return StateTier::kHost;
  if (tier == TERRACE_TIER_NVME) return StateTier::kNvme;
  refuse(fmt::format("a tier, such as state_tier, is {}", tier), "name a terrace_tier");
}

IoEngineKind engine_of(std::int32_t engine) {
  if (engine == TERRACE_IO_AUTO) return IoEngineKind::kAuto;
  if (engine == TERRACE_IO_URING) return IoEngineKind::kIoUring;
  if (engine == TERRACE_IO_POSIX) return IoEngineKind::kPosix;
  refuse(fmt::format("io_engine is {}", engine), "name a terrace_io_engine");
}

std::optional<int> threads_of(std::int32_t threads) {
  const int most = most_threads();
  if (threads < 0 || threads > most) {
    refuse(fmt::format("threads is {}", threads),
           fmt::format("it must be 0 to {}: a process here computes with no more threads", most));
  }
  return threads > 0 ? std::optional<int>(threads) : std::nullopt;
}

std::vector<NvmeDirectory> directories_of(const terrace_nvme_directory* given,
                                          std::uint32_t count) {
  if (count > kDirectoriesMost) {
    refuse(fmt::format("nvme_count is {}", count),
           fmt::format("it must be at most {}", kDirectoriesMost));
  }
  if (count > 0) check_pointer(given, "nvme");
  std::vector<NvmeDirectory> directories;
  for (std::uint32_t i = 0; i < count; ++i) {
    check_pointer(given[i].path, "path of a terrace_nvme_directory");
    NvmeDirectory directory = {.path = given[i].path, .budget_bytes = {}};
    if (given[i].budget_bytes > 0) directory.budget_bytes = given[i].budget_bytes;
    directories.push_back(std::move(directory));
  }
  return directories;
}

std::optional<Tier> home_of(std::int32_t tier) {
  switch (tier_of(tier)) {
    case StateTier::kHost:
      return Tier::kHost;
    case StateTier::kNvme:
      return Tier::kNvme;
    case StateTier::kAuto:
      break;
  }
  return std::nullopt;
}

}  // namespace

void check_pointer(const void* pointer, const char* what) {
  if (pointer == nullptr) refuse(fmt::format("{} is NULL", what), "give a pointer to it");
}

void check_struct(const void* given, std::size_t known_bytes, const char* what) {
  std::uint32_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size < known_bytes || size > 64 * known_bytes) {
    refuse(fmt::format("struct_size of {} is {}", what, size),
           fmt::format("set it to sizeof: {} in this version", known_bytes));
  }
  const auto* const bytes = static_cast<const unsigned char*>(given);
  if (std::all_of(bytes + known_bytes, bytes + size, [](unsigned char c) { return c == 0; })) {
    return;
  }
  throw SessionError(
      SessionProblem::kUnsupported,
      fmt::format("{} has fields that this version of the library does not know", what),
      "use the header of this library's version, or a newer library");
}

SessionOptions session_options_of(const terrace_session_options& options) {
  check_zero(options.reserved, "reserved of terrace_session_options");
  SessionOptions session;
  session.threads = threads_of(options.threads);
  if (options.host_memory_bytes > 0) session.host_memory_bytes = options.host_memory_bytes;
  session.tier = tier_of(options.state_tier);
  session.nvme.engine = engine_of(options.io_engine);
  session.nvme.named_files = false;
  session.nvme.directories = directories_of(options.nvme, options.nvme_count);
  return session;
}

DType dtype_of(std::int32_t dtype, const char* what) {
  if (dtype == TERRACE_DTYPE_FP32) return DType::kF32;
  if (dtype == TERRACE_DTYPE_BF16) return DType::kBF16;
  if (dtype == TERRACE_DTYPE_FP16) return DType::kF16;
  throw SessionError(SessionProblem::kDType, fmt::format("the dtype of {} is {}", what, dtype),
                     "it must be TERRACE_DTYPE_FP32, TERRACE_DTYPE_BF16 or TERRACE_DTYPE_FP16");
}

TensorView view_of(const terrace_buffer& buffer, const char* what) {
  if (place_of(buffer, what).is_gpu()) {
    throw SessionError(SessionProblem::kUnsupported,
                       fmt::format("{} is in the memory of a GPU (TERRACE_DEVICE_CUDA)", what),
                       "copy it to the host: only the parameters and gradients of a session may be "
                       "in GPU memory");
  }
  return elements_of(buffer, what);
}

GpuPlace place_of(const terrace_buffer& buffer, const char* what) {
  if (buffer.device_type == TERRACE_DEVICE_CUDA) {
    if (buffer.device_id < 0) {
      refuse(fmt::format("the device_id of {} is {}", what, buffer.device_id),
             "GPUs are counted from 0");
    }
    return {.device = buffer.device_id, .stream = buffer.stream};
  }
  if (buffer.device_type != TERRACE_DEVICE_CPU) {
    refuse(fmt::format("the device_type of {} is {}", what, buffer.device_type),
           "name a terrace_device_type");
  }
  if (buffer.device_id != 0 || buffer.stream != nullptr) {
    refuse(fmt::format("{} is in the memory of the CPU, but names a device or a stream", what),
           "set device_id to 0 and stream to NULL");
  }
  return {};
}

TensorView elements_of(const terrace_buffer& buffer, const char* what) {
  check_zero(buffer.reserved, "reserved of terrace_buffer");
  const DType dtype = dtype_of(buffer.dtype, what);
  if (buffer.element_count < 1) {
    refuse(buffer.element_count == 0
               ? fmt::format("{} has no elements", what)
               : fmt::format("{} has {} elements", what, buffer.element_count),
           "leave out empty buffers; otherwise element_count must be at least 1");
  }
  check_pointer(buffer.data, what);
  if (reinterpret_cast<std::uintptr_t>(buffer.data) % size_of(dtype) != 0) {
    refuse(fmt::format("the memory of {} is not aligned", what),
           fmt::format("its address must be a multiple of {}", size_of(dtype)));
  }
  return view(static_cast<std::byte*>(buffer.data), dtype, buffer.element_count);
}

SessionTensor tensor_of(const terrace_tensor_options& options, std::int32_t group) {
  check_zero(options.reserved, "reserved of terrace_tensor_options");
  check_pointer(options.name, "name of terrace_tensor_options");
  if ((options.flags & ~TERRACE_TENSOR_FROZEN) != 0) {
    refuse(fmt::format("flags of tensor {} are {:#x}", options.name, options.flags),
           "set TERRACE_TENSOR_FROZEN or nothing");
  }
  const std::string what = fmt::format("tensor {}", options.name);
  const GpuPlace place = place_of(options.parameter, what.c_str());
  const TensorView parameter = elements_of(options.parameter, what.c_str());
  if (options.dimension_count < 0 || options.dimension_count > kDimensionsMost) {
    refuse(fmt::format("dimension_count of {} is {}", what, options.dimension_count),
           fmt::format("it must be 0 to {}", kDimensionsMost));
  }
  SessionTensor tensor = {.name = options.name,
                          .group = group,
                          .dtype = parameter.dtype,
                          .data = parameter.data,
                          .shape = {},
                          .elements = parameter.elements(),
                          .is_frozen = (options.flags & TERRACE_TENSOR_FROZEN) != 0,
                          .place = place};
  if (options.dimension_count > 0) {
    check_pointer(options.shape, "shape of terrace_tensor_options");
    tensor.shape.assign(options.shape, options.shape + options.dimension_count);
  }
  return tensor;
}

SessionStepOptions step_options_of(const terrace_step_options& options) {
  check_zero(options.reserved, "reserved of terrace_step_options");
  if ((options.flags & ~(TERRACE_STEP_SKIP_MISSING | TERRACE_STEP_GRADIENTS_ARRIVE)) != 0) {
    refuse(fmt::format("flags of a step are {:#x}", options.flags),
           "set TERRACE_STEP_SKIP_MISSING, TERRACE_STEP_GRADIENTS_ARRIVE or nothing");
  }
  SessionStepOptions step;
  step.skips_missing = (options.flags & TERRACE_STEP_SKIP_MISSING) != 0;
  step.gradients_arrive = (options.flags & TERRACE_STEP_GRADIENTS_ARRIVE) != 0;
  step.max_grad_norm = options.max_grad_norm;
  if (options.gradient_scale != 0) step.gradient_scale = options.gradient_scale;
  step.known_norm = options.known_norm;
  if (options.learning_rate_count > 0) {
    check_pointer(options.learning_rates, "learning_rates of terrace_step_options");
    step.learning_rates.assign(options.learning_rates,
                               options.learning_rates + options.learning_rate_count);
  }
  return step;
}

std::span<float> floats_of(const terrace_buffer& buffer, const char* what) {
  const TensorView elements = view_of(buffer, what);
  if (elements.dtype != DType::kF32) {
    throw SessionError(SessionProblem::kDType,
                       fmt::format("{} has elements that are not fp32", what),
                       "set its dtype to TERRACE_DTYPE_FP32");
  }
  return {elements.as<float>(), static_cast<std::size_t>(elements.elements())};
}

std::vector<NamedValue> named_values(const terrace_hyperparameter* values, std::uint32_t count) {
  if (count > 0) check_pointer(values, "hyperparameters");
  std::vector<NamedValue> named;
  for (std::uint32_t i = 0; i < count; ++i) {
    check_pointer(values[i].name, "name of a terrace_hyperparameter");
    named.emplace_back(values[i].name, values[i].value);
  }
  return named;
}

UnitSessionOptions units_options_of(const terrace_units_options& options) {
  if ((options.flags & ~TERRACE_UNITS_CAN_ABANDON) != 0) {
    refuse(fmt::format("flags of terrace_units_options are {:#x}", options.flags),
           "set TERRACE_UNITS_CAN_ABANDON or nothing");
  }
  check_pointer(options.rule, "rule of terrace_units_options");
  UnitSessionOptions units;
  units.threads = threads_of(options.threads);
  if (options.host_memory_bytes > 0) units.host_memory_bytes = options.host_memory_bytes;
  units.nvme.engine = engine_of(options.io_engine);
  units.nvme.named_files = false;
  units.nvme.directories = directories_of(options.nvme, options.nvme_count);
  units.homes[StateClass::kParameters] = home_of(options.parameter_tier);
  units.homes[StateClass::kGradients] = home_of(options.gradient_tier);
  units.homes[StateClass::kOptimizer] = home_of(options.optimizer_tier);
  units.homes[StateClass::kActivations] = home_of(options.saved_tier);
  units.compute_type = dtype_of(options.compute_dtype, "the parameters of units");
  if (units.compute_type == DType::kF16) {
    throw SessionError(SessionProblem::kDType, "units do not compute in fp16",
                       "set compute_dtype to TERRACE_DTYPE_FP32 or TERRACE_DTYPE_BF16");
  }
  units.micro_batches = options.micro_batches;
  units.rule = options.rule;
  units.hyperparameters = named_values(options.hyperparameters, options.hyperparameter_count);
  units.weight_decay = options.weight_decay;
  units.max_grad_norm = options.max_grad_norm;
  units.can_abandon = (options.flags & TERRACE_UNITS_CAN_ABANDON) != 0;
  return units;
}

SessionUnit unit_of(const terrace_unit_options& options) {
  check_pointer(options.name, "name of terrace_unit_options");
  if ((options.flags & ~TERRACE_UNIT_FROZEN) != 0) {
    refuse(fmt::format("flags of unit {} are {:#x}", options.name, options.flags),
           "set TERRACE_UNIT_FROZEN or nothing");
  }
  if (options.saved_bytes > kSavedBytesMost) {
    refuse(fmt::format("unit {} saves {} bytes", options.name, options.saved_bytes),
           fmt::format("give at most {}", kSavedBytesMost));
  }
  return {.name = options.name,
          .elements = options.element_count,
          .decayed_elements = options.decayed_elements,
          .is_frozen = (options.flags & TERRACE_UNIT_FROZEN) != 0,
          .saved_bytes = options.saved_bytes};
}

StepTask task_of(std::int32_t unit, std::int32_t pass, std::int32_t micro_batch) {
  if (pass != TERRACE_PASS_FORWARD && pass != TERRACE_PASS_BACKWARD) {
    refuse(fmt::format("pass is {}", pass), "name a terrace_pass");
  }
  const bool is_forward = pass == TERRACE_PASS_FORWARD;
  return {is_forward ? UnitPass::kForward : UnitPass::kBackward, unit, micro_batch};
}

}  // namespace terrace
