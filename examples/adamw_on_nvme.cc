// An optimizer whose state lives on a drive: chunk by chunk it is read, updated and written back,
// and the next chunk is read meanwhile. The same updates of state in memory have to give the same
// bits.
//
//   adamw_on_nvme DIRECTORY    any directory of the drive; what is written goes when the program
//   ends

#include <cstdio>
#include <future>
#include <vector>

#include "memory/host/host_memory.h"
#include "memory/host/worker_arena.h"
#include "offload/nvme_store.h"
#include "optim/update_rules.h"

using namespace terrace;
constexpr std::size_t kChunks = 4;
constexpr std::size_t kElements = 1 << 20;  // of a chunk
constexpr std::size_t kSteps = 3;

const UpdateRule& kRule = *find_update_rule("adamw");
const StateFormat kFormat = {MasterForm::kParameter, SlotForm::kFp32, kRule.slots.size()};
const std::size_t kStateBytes = kFormat.bytes(kElements);
// A step of one chunk's parameters, with a made-up gradient.
void update(std::size_t chunk, std::size_t step, std::span<float> parameters, std::byte* state) {
  static WorkerArena workers(2);
  std::vector<float> gradient(kElements);
  for (std::size_t i = 0; i < kElements; ++i) gradient[i] = 1e-3F * float((i + chunk + step) % 7);
  StepScalars scalars = {.learning_rate = 1e-3F, .step = std::uint32_t(step)};
  ParameterUpdate update = {.options = standard_options(kRule), .scalars = &scalars};
  scalars.of_rule = kRule.step_scalars(update.options, scalars.step);
  update.gradient = view(std::span(gradient));
  update.parameter = view(parameters.subspan(chunk * kElements, kElements));
  set_state_views(update, kFormat, state, kElements);
  kRule.cpu({.workers = &workers}, update);
}

struct Transfer final : IoCompletion {  // a request under way
  void done(const IoOutcome& outcome) noexcept override { ended.set_value(outcome); }
  void wait() { ended.get_future().get().throw_if_failed(); }
  std::promise<IoOutcome> ended;
};
using Direction = IoRequest::Direction;
void train_from_drive(BlockStore& store, std::span<float> parameters, std::span<std::byte> room) {
  std::vector<ExtentId> extents(kChunks);
  for (ExtentId& extent : extents) extent = store.create_extent(kStateBytes);
  store.prepare();
  std::vector<Transfer> zeros(kChunks), reads(kSteps * kChunks), writes(kSteps * kChunks);
  const auto start = [&](Direction direction, std::size_t n, Transfer& transfer) {
    const auto place = room.subspan(n % 2 * kStateBytes, kStateBytes);  // two chunks take turns
    store.submit({direction, {}, extents[n % kChunks], 0, place, &transfer});
  };
  for (std::size_t n = 0; n < kChunks; ++n) start(Direction::kWrite, n, zeros[n]), zeros[n].wait();
  start(Direction::kRead, 0, reads[0]);
  for (std::size_t n = 0; n < kSteps * kChunks; ++n) {
    reads[n].wait();
    if (n > 0) writes[n - 1].wait();  // of the place that is read to next
    if (n + 1 < kSteps * kChunks) start(Direction::kRead, n + 1, reads[n + 1]);
    update(n % kChunks, n / kChunks + 1, parameters, &room[n % 2 * kStateBytes]);
    start(Direction::kWrite, n, writes[n]);
  }
  writes.back().wait();
}

int main(int count, char** arguments) try {
  if (count != 2) return std::fprintf(stderr, "usage: adamw_on_nvme DIRECTORY\n"), 2;
  std::vector<float> from_drive(kChunks * kElements, 1.0F), in_memory = from_drive;
  HostMemory state(kChunks * kStateBytes, {}), room(2 * kStateBytes, {});
  for (std::size_t n = 0; n < kSteps * kChunks; ++n) {
    update(n % kChunks, n / kChunks + 1, in_memory, &state.bytes()[n % kChunks * kStateBytes]);
  }
  SilentLog log;
  NvmeStoreOptions drive = {.directories = {{arguments[1], {}}}};
  train_from_drive(*make_nvme_store(drive, log), from_drive, room.bytes());
  if (from_drive != in_memory) throw CorruptData("from the drive come other bits", "");
  std::printf("%zu parameters, the same bits\n", in_memory.size());
} catch (const std::exception& problem) {
  return std::fprintf(stderr, "adamw_on_nvme: %s\n", problem.what()), 1;
}
