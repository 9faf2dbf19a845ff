#include "runtime/capi/capi_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "runtime/session/session_error.h"

namespace terrace {
namespace {

constexpr std::uint32_t kDirectoriesMost = 64;
constexpr std::int32_t kDimensionsMost = 32;
constexpr std::int32_t kThreadsMost = 4096;

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
  refuse(fmt::format("state_tier is {}", tier), "name a terrace_tier");
}

IoEngineKind engine_of(std::int32_t engine) {
  if (engine == TERRACE_IO_AUTO) return IoEngineKind::kAuto;
  if (engine == TERRACE_IO_URING) return IoEngineKind::kIoUring;
  if (engine == TERRACE_IO_POSIX) return IoEngineKind::kPosix;
  refuse(fmt::format("io_engine is {}", engine), "name a terrace_io_engine");
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
  throw SessionError(SessionProblem::kUnsupported,
                     fmt::format("{} has fields that this library does not know", what),
                     "use the header of this library's version, or a newer library");
}

SessionOptions session_options_of(const terrace_session_options& options) {
  check_zero(options.reserved, "reserved of terrace_session_options");
  SessionOptions session;
  if (options.threads < 0 || options.threads > kThreadsMost) {
    refuse(fmt::format("threads is {}", options.threads),
           fmt::format("it is 0 to {}", kThreadsMost));
  }
  if (options.threads > 0) session.threads = options.threads;
  if (options.host_memory_bytes > 0) session.host_memory_bytes = options.host_memory_bytes;
  session.tier = tier_of(options.state_tier);
  session.nvme.engine = engine_of(options.io_engine);
  session.nvme.named_files = false;
  if (options.nvme_count > kDirectoriesMost) {
    refuse(fmt::format("nvme_count is {}", options.nvme_count),
           fmt::format("it is {} at most", kDirectoriesMost));
  }
  if (options.nvme_count > 0) check_pointer(options.nvme, "nvme of terrace_session_options");
  for (std::uint32_t i = 0; i < options.nvme_count; ++i) {
    check_pointer(options.nvme[i].path, "path of a terrace_nvme_directory");
    NvmeDirectory directory = {.path = options.nvme[i].path, .budget_bytes = {}};
    if (options.nvme[i].budget_bytes > 0) directory.budget_bytes = options.nvme[i].budget_bytes;
    session.nvme.directories.push_back(std::move(directory));
  }
  return session;
}

DType dtype_of(std::int32_t dtype, const char* what) {
  if (dtype == TERRACE_DTYPE_FP32) return DType::kF32;
  if (dtype == TERRACE_DTYPE_BF16) return DType::kBF16;
  if (dtype == TERRACE_DTYPE_FP16) return DType::kF16;
  throw SessionError(SessionProblem::kDType, fmt::format("the dtype of {} is {}", what, dtype),
                     "it is TERRACE_DTYPE_FP32, TERRACE_DTYPE_BF16 or TERRACE_DTYPE_FP16");
}

TensorView view_of(const terrace_buffer& buffer, const char* what) {
  check_zero(buffer.reserved, "reserved of terrace_buffer");
  if (buffer.device_type == TERRACE_DEVICE_CUDA) {
    throw SessionError(SessionProblem::kUnsupported,
                       fmt::format("{} is in the memory of a GPU", what),
                       "copy it to the host; this library is built without CUDA");
  }
  if (buffer.device_type != TERRACE_DEVICE_CPU) {
    refuse(fmt::format("the device_type of {} is {}", what, buffer.device_type),
           "name a terrace_device_type");
  }
  if (buffer.device_id != 0 || buffer.stream != nullptr) {
    refuse(fmt::format("{} is in the memory of the CPU, and names a device or a stream", what),
           "set device_id to 0 and stream to NULL");
  }
  const DType dtype = dtype_of(buffer.dtype, what);
  check_pointer(buffer.data, what);
  if (reinterpret_cast<std::uintptr_t>(buffer.data) % size_of(dtype) != 0) {
    refuse(fmt::format("the memory of {} is not aligned", what),
           fmt::format("its address is a multiple of {}", size_of(dtype)));
  }
  if (buffer.element_count < 1) {
    refuse(fmt::format("{} has {} elements", what, buffer.element_count), "it has 1 at least");
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
  const TensorView parameter = view_of(options.parameter, what.c_str());
  if (options.dimension_count < 0 || options.dimension_count > kDimensionsMost) {
    refuse(fmt::format("dimension_count of {} is {}", what, options.dimension_count),
           fmt::format("it is 0 to {}", kDimensionsMost));
  }
  SessionTensor tensor = {.name = options.name,
                          .group = group,
                          .dtype = parameter.dtype,
                          .data = parameter.data,
                          .shape = {},
                          .elements = parameter.elements(),
                          .is_frozen = (options.flags & TERRACE_TENSOR_FROZEN) != 0};
  if (options.dimension_count > 0) {
    check_pointer(options.shape, "shape of terrace_tensor_options");
    tensor.shape.assign(options.shape, options.shape + options.dimension_count);
  }
  return tensor;
}

SessionStepOptions step_options_of(const terrace_step_options& options) {
  check_zero(options.reserved, "reserved of terrace_step_options");
  if ((options.flags & ~TERRACE_STEP_SKIP_MISSING) != 0) {
    refuse(fmt::format("flags of a step are {:#x}", options.flags),
           "set TERRACE_STEP_SKIP_MISSING or nothing");
  }
  SessionStepOptions step;
  step.skips_missing = (options.flags & TERRACE_STEP_SKIP_MISSING) != 0;
  step.max_grad_norm = options.max_grad_norm;
  if (options.gradient_scale != 0) step.gradient_scale = options.gradient_scale;
  if (options.learning_rate_count > 0) {
    check_pointer(options.learning_rates, "learning_rates of terrace_step_options");
    step.learning_rates.assign(options.learning_rates,
                               options.learning_rates + options.learning_rate_count);
  }
  return step;
}

}  // namespace terrace
