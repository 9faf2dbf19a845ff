#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <string>

#include "kernels/cpu/matrix_product.h"
#include "tests/runtime/engine/engine_fixture.h"

// No step allocates. This program stands in front of the C library's allocator and mmap, and counts
// what any thread asks for in the steady state of training. It is a program of its own, as it
// replaces malloc for everything in it. Sanitizers replace malloc themselves, so they do not run
// it. The steps are in bf16 and use our own products: oneDNN allocates inside its calls
// (docs/kernels.md).
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
}

namespace terrace {
namespace {

constexpr int kFrames = 16;
constexpr std::size_t kRecordsMax = 16;

struct Record {
  std::size_t size = 0;
  std::array<void*, kFrames> frames{};
  int depth = 0;
};

std::atomic<bool> armed = false;
std::atomic<std::size_t> counted = 0;
std::array<Record, kRecordsMax> records;
thread_local bool inside = false;

void count(std::size_t size) {
  if (!armed.load(std::memory_order_relaxed) || inside) return;
  inside = true;
  const std::size_t index = counted.fetch_add(1);
  if (index < kRecordsMax) {
    records[index].size = size;
    records[index].depth = backtrace(records[index].frames.data(), kFrames);
  }
  inside = false;
}

// Describes each allocation by its size and the frames that asked for it, innermost first.
std::string description() {
  std::string text = fmt::format("{} allocations\n", counted.load());
  for (std::size_t i = 0; i < std::min(kRecordsMax, counted.load()); ++i) {
    text += fmt::format("{} bytes\n", records[i].size);
    char** names = backtrace_symbols(records[i].frames.data(), records[i].depth);
    for (int frame = 2; frame < records[i].depth; ++frame)
      text += fmt::format("  {}\n", names[frame]);
    std::free(names);
  }
  return text;
}

}  // namespace
}  // namespace terrace

extern "C" {

void* malloc(std::size_t size) {
  terrace::count(size);
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  terrace::count(count * size);
  return __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) {
  terrace::count(size);
  return __libc_realloc(memory, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  terrace::count(size);
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  terrace::count(size);
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  terrace::count(size);
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
void* mmap(void* address, std::size_t size, int protection, int flags, int file, off_t offset) {
  terrace::count(size);
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, size, protection, flags, file, offset));
}

}  // extern "C"

namespace terrace {
namespace {

struct Setting {
  std::string_view family;
  bool away;  // state and activations on the drive

  std::string name() const { return fmt::format("{}{}", family, away ? "_away" : ""); }
};

ModelRuntimeOptions options_of(const Setting& setting, const TemporaryDirectory& directory) {
  ModelRuntimeOptions options = tiny_options(tiny_model(setting.family, true, true), DType::kBF16);
  options.placement.micro_batches = 2;
  if (!setting.away) return options;
  options.placement.unified = false;
  options.placement.has_nvme = true;
  options.placement.homes.fill(Tier::kNvme);
  options.nvme.directories = {{directory.path(), std::nullopt}};
  return options;
}

class StepAllocation : public testing::TestWithParam<Setting> {};

TEST_P(StepAllocation, SteadyStateAllocatesNothing) {
  if (product_code(DType::kBF16) == ProductCode::kOneDnn) GTEST_SKIP() << "oneDNN multiplies here";
  constexpr std::int64_t kWarm = 6;  // steps in which pools of threads and libraries fill
  constexpr std::int64_t kSteps = 12;
  const TemporaryDirectory directory;
  const ModelRuntimeOptions options = options_of(GetParam(), directory);
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  engine.fill_state(RandomState(1234));
  const std::vector<std::int32_t> tokens = batch_of_step(options, 1);
  const auto begin = [&](std::int64_t step) {
    engine.begin_step({step, tokens, options.batch.rows() * options.placement.micro_batches, 1e-3});
  };
  std::array<void*, kFrames> frames;
  backtrace(frames.data(), kFrames);  // the first call loads what it needs
  begin(1);
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    if (step == kWarm) {
      counted = 0;
      armed = true;
    }
    if (step < kSteps) begin(step + 1);
    engine.finish_step();
  }
  armed = false;
  EXPECT_EQ(counted.load(), 0U) << description();
}

TEST(StepAllocationHook, CountsWhatIsAllocated) {
  counted = 0;
  armed = true;
  auto number = std::make_unique<std::array<int, 100>>();
  void* pages = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  armed = false;
  EXPECT_EQ(counted.load(), 2U) << number->size();
  munmap(pages, 4096);
}

INSTANTIATE_TEST_SUITE_P(Settings, StepAllocation,
                         testing::Values(Setting{"gpt2", false}, Setting{"gpt2", true},
                                         Setting{"llama", true}, Setting{"qwen3", true},
                                         Setting{"gemma2", false}, Setting{"olmo2", true},
                                         Setting{"qwen3_moe", true}),
                         [](const auto& param) { return param.param.name(); });

}  // namespace
}  // namespace terrace
