// The NVMe store alone. Extents are written from memory, and read back with their checksums
// compared.
//
//   store DIRECTORY    any directory of the drive; written files go away when the program ends

#include <algorithm>
#include <cstdio>
#include <future>
#include <memory>
#include <vector>

#include "base/error.h"
#include "memory/host/host_memory.h"
#include "offload/nvme_store.h"

namespace {

using namespace terrace;

constexpr std::size_t kExtents = 4;
constexpr std::size_t kExtentBytes = 16 * kMiB;

// Passes the outcome of a request, when it has ended, to the thread that waits for it.
class Waiting final : public IoCompletion {
 public:
  void done(const IoOutcome& outcome) noexcept override { outcome_.set_value(outcome); }
  void wait() { outcome_.get_future().get().throw_if_failed(); }

 private:
  std::promise<IoOutcome> outcome_;
};

// Transfers all extents at once: the store keeps several requests in flight.
void transfer(BlockStore& store, IoRequest::Direction direction,
              const std::vector<ExtentId>& extents, std::span<std::byte> memory) {
  std::vector<Waiting> waiting(extents.size());
  for (std::size_t i = 0; i < extents.size(); ++i) {
    store.submit({.direction = direction,
                  .extent = extents[i],
                  .memory = memory.subspan(i * kExtentBytes, kExtentBytes),
                  .completion = &waiting[i]});
  }
  for (Waiting& request : waiting) request.wait();
}

void run(const char* directory) {
  SilentLog log;
  const std::unique_ptr<BlockStore> store = make_nvme_store(
      {.directories = {{.path = directory, .budget_bytes = kExtents * kExtentBytes}}}, log);
  std::vector<ExtentId> extents(kExtents);
  for (ExtentId& extent : extents) extent = store->create_extent(kExtentBytes);
  store->prepare();

  HostMemory memory(kExtents * kExtentBytes, {});
  store->register_memory(memory.bytes());
  for (std::size_t i = 0; i < memory.bytes().size(); ++i)
    memory.bytes()[i] = std::byte(i * 131 >> 7);
  const std::vector<std::byte> written(memory.bytes().begin(), memory.bytes().end());

  transfer(*store, IoRequest::Direction::kWrite, extents, memory.bytes());
  std::ranges::fill(memory.bytes(), std::byte{0});
  transfer(*store, IoRequest::Direction::kRead, extents, memory.bytes());
  if (!std::ranges::equal(written, memory.bytes())) throw CorruptData("other bytes", "");
  std::printf("%zu MiB written and read back by %s\n", written.size() / kMiB,
              store->paths().front().engine.c_str());
  store->drain();
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return std::fprintf(stderr, "usage: store DIRECTORY\n"), 2;
  try {
    run(arguments[1]);
  } catch (const std::exception& problem) {
    return std::fprintf(stderr, "store: %s\n", problem.what()), 1;
  }
}
