#include "offload/uring/uring_probe.h"

#include <sys/resource.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <span>

#include "offload/uring/ring.h"
#include "offload/uring/uring_engine.h"

namespace terrace {
namespace {

constexpr std::size_t kProbedBytes = 4096;

struct alignas(kProbedBytes) Page {
  std::array<std::byte, kProbedBytes> bytes = {};
};

// While this object lives, the process may not lock memory, unless it has the right to lock any
// amount.
class NoLockedMemory {
 public:
  NoLockedMemory() : known_(::getrlimit(RLIMIT_MEMLOCK, &limit_) == 0) {
    const rlimit none = {.rlim_cur = 0, .rlim_max = limit_.rlim_max};
    if (known_) ::setrlimit(RLIMIT_MEMLOCK, &none);
  }
  ~NoLockedMemory() {
    if (known_) ::setrlimit(RLIMIT_MEMLOCK, &limit_);
  }
  NoLockedMemory(const NoLockedMemory&) = delete;
  NoLockedMemory& operator=(const NoLockedMemory&) = delete;

 private:
  rlimit limit_ = {};
  bool known_;
};

}  // namespace

UringFacts probe_uring() {
  Page page;  // outlives the ring
  Ring ring;
  const std::array files = {-1};  // an entry without a file
  const int refused = ring.open(files, 8, TaskRun::kDeferred);
  if (refused != 0) {
    throw UringRefused(
        {.operation = ring.refused_call(), .path = "a ring", .error_number = refused});
  }
  UringFacts facts;
  {
    const NoLockedMemory none;
    facts.register_error = ring.register_memory(page.bytes);
  }
  facts.counts_locked_memory = facts.register_error == ENOMEM || facts.register_error == EPERM;
  if (facts.counts_locked_memory) facts.register_error = ring.register_memory(page.bytes);
  return facts;
}

}  // namespace terrace
