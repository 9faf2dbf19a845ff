#include "tests/kernels/fiber_team.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "base/check.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace terrace::test {
namespace {

constexpr int kWarp = 32;
constexpr int kThreadsMax = 1024;
// The number of sets of fibers, which blocks use in turn: the block that comes kSets later uses the
// fibers of a block again. Neighbouring blocks must not share fibers, because ThreadSanitizer takes
// everything that one fiber does as ordered.
constexpr int kSets = 2;
constexpr std::size_t kStackBytes = std::size_t{256} << 10;
constexpr std::size_t kGuardBytes = std::size_t{16} << 10;

#ifdef __SANITIZE_THREAD__
void* own_identity() { return __tsan_get_current_fiber(); }
void* make_identity() { return __tsan_create_fiber(0); }
void end_identity(void* identity) { __tsan_destroy_fiber(identity); }
void switch_identity(void* identity, bool orders) {
  __tsan_switch_to_fiber(identity, orders ? 0 : __tsan_switch_to_fiber_no_sync);
}
#else
void* own_identity() { return nullptr; }
void* make_identity() { return nullptr; }
void end_identity(void* /*identity*/) {}
void switch_identity(void* /*identity*/, bool /*orders*/) {}
#endif

class Stack {
 public:
  Stack()
      : at_(::mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    TERRACE_CHECK(at_ != MAP_FAILED);
    TERRACE_CHECK_EQ(::mprotect(at_, kGuardBytes, PROT_NONE), 0);
  }
  ~Stack() { ::munmap(at_, kGuardBytes + kStackBytes); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  stack_t whole() const {
    return {
        .ss_sp = static_cast<std::byte*>(at_) + kGuardBytes, .ss_flags = 0, .ss_size = kStackBytes};
  }

 private:
  void* at_;
};

}  // namespace

#ifdef __SANITIZE_THREAD__
Unseen::Unseen() {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
Unseen::~Unseen() {
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
void announce(void* token) { __tsan_release(token); }
void see(void* token) { __tsan_acquire(token); }
#else
Unseen::Unseen() = default;
Unseen::~Unseen() = default;
void announce(void* /*token*/) {}
void see(void* /*token*/) {}
#endif

struct FiberTeam::Fiber {
  enum class State : std::uint8_t { kReady, kWaiting, kEnded };

  Stack stack;
  ucontext_t context = {};
  void* identity = make_identity();
  int thread = 0;
  State state = State::kEnded;
  bool is_new = false;  // in this block: the switch to it shows it the scheduler's writes
  std::string_view waits_for;
};

FiberTeam::FiberTeam() : fibers_(std::size_t{kSets} * kThreadsMax) {}

FiberTeam::~FiberTeam() {
  for (const auto& fiber : fibers_) {
    if (fiber != nullptr) end_identity(fiber->identity);
  }
}

FiberTeam::Fiber& FiberTeam::fiber_of(int t) {
  const auto set = static_cast<std::size_t>(block_ % kSets);
  return *fibers_.at(set * kThreadsMax + static_cast<std::size_t>(t));
}

void FiberTeam::run(std::int64_t block, int threads, FunctionRef<void(int)> thread) {
  TERRACE_CHECK(threads % kWarp == 0 && threads <= kThreadsMax);
  TERRACE_CHECK(running_ == nullptr);
  // The members that fibers read are written again here for the next block, and nothing orders the
  // two.
  const Unseen unseen;
  scheduler_identity_ = own_identity();
  block_ = block;
  threads_ = threads;
  thread_ = &thread;
  ended_ = 0;
  all_ = {.first = 0, .count = threads};
  warps_.clear();
  for (int first = 0; first < threads; first += kWarp) {
    warps_.push_back({.first = first, .count = kWarp});
  }
  for (int t = 0; t < threads; ++t) begin(t);
  while (ended_ < threads) {
    bool went_on = false;
    for (int i = 0; i < threads; ++i) {
      Fiber& fiber = fiber_of(block % 2 != 0 ? threads - 1 - i : i);
      if (fiber.state != Fiber::State::kReady) continue;
      went_on = true;
      resume(fiber);
    }
    if (!went_on) tell_who_waits();
  }
}

void FiberTeam::begin(int t) {
  auto& place = fibers_[static_cast<std::size_t>(block_ % kSets * kThreadsMax + t)];
  if (place == nullptr) {
    place = std::make_unique<Fiber>();
    TERRACE_CHECK_EQ(::getcontext(&place->context), 0);
    place->context.uc_stack = place->stack.whole();
    place->context.uc_link = nullptr;
    // makecontext() passes numbers of 32 bits.
    const auto address = reinterpret_cast<std::uintptr_t>(this);
    ::makecontext(&place->context, reinterpret_cast<void (*)()>(&FiberTeam::enter), 2,
                  static_cast<unsigned>(address), static_cast<unsigned>(address >> 32));
  }
  place->thread = t;
  place->state = Fiber::State::kReady;
  place->is_new = true;
  place->waits_for = {};
}

void FiberTeam::enter(unsigned low, unsigned high) {
  auto* const team =
      reinterpret_cast<FiberTeam*>(static_cast<std::uintptr_t>(high) << 32 | std::uintptr_t{low});
  for (;;) team->work();
}

// Does the work of one fiber in one block.
void FiberTeam::work() {
  Fiber* own = nullptr;
  std::optional<FunctionRef<void(int)>> thread;
  int t = 0;
  {
    const Unseen unseen;
    own = running_;
    thread = *thread_;
    t = own->thread;
  }
  (*thread)(t);
  announce(this);
  {
    const Unseen unseen;
    own->state = Fiber::State::kEnded;
    ++ended_;
  }
  leave(own->context);
}

void FiberTeam::resume(Fiber& fiber) {
  running_ = &fiber;
  switch_identity(fiber.identity, fiber.is_new);
  fiber.is_new = false;
  TERRACE_CHECK_EQ(::swapcontext(&scheduler_, &fiber.context), 0);
  running_ = nullptr;
}

void FiberTeam::leave(ucontext_t& context) {
  void* scheduler = nullptr;
  {
    const Unseen unseen;
    scheduler = scheduler_identity_;
  }
  switch_identity(scheduler, false);
  TERRACE_CHECK_EQ(::swapcontext(&context, &scheduler_), 0);
}

void FiberTeam::meet_warp(int t, std::string_view what) {
  const Unseen unseen;
  meet(t, warps_[static_cast<std::size_t>(t / kWarp)], what);
}

void FiberTeam::meet_block(int t, std::string_view what) {
  const Unseen unseen;
  meet(t, all_, what);
}

void FiberTeam::meet(int t, Meeting& meeting, std::string_view what) {
  Fiber& own = fiber_of(t);
  own.waits_for = what;
  if (++meeting.arrived < meeting.count) {
    own.state = Fiber::State::kWaiting;
    leave(own.context);
    return;
  }
  meeting.arrived = 0;
  for (int other = meeting.first; other < meeting.first + meeting.count; ++other) {
    Fiber& fiber = fiber_of(other);
    if (fiber.waits_for != what) tell_who_waits();
    fiber.state = Fiber::State::kReady;
  }
}

void FiberTeam::join() { see(this); }

void FiberTeam::tell_who_waits() {
  constexpr int kToldMax = 4;
  const auto what = [this](int t) {
    const Fiber& fiber = fiber_of(t);
    return fiber.state == Fiber::State::kEnded ? "nothing: it has ended" : fiber.waits_for;
  };
  fmt::print(stderr, "block {}: its threads cannot meet:", block_);
  int told = 0;
  for (int t = 0; t < threads_ && told < kToldMax; ++t) {
    if (t != 0 && what(t) == what(t - 1)) continue;
    fmt::print(stderr, "{} thread {} waits for {}", told == 0 ? "" : ",", t, what(t));
    ++told;
  }
  fmt::print(stderr, "\n");
  std::abort();
}

FiberTeam& fiber_team() {
  static FiberTeam team;
  return team;
}

}  // namespace terrace::test
