#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/function_ref.h"

namespace terrace::test {

// While an object of this class lives, ThreadSanitizer ignores what this thread or fiber does: the
// exchange of registers between threads of a GPU orders nothing in memory, so ours must not either.
class Unseen {
 public:
  Unseen();
  ~Unseen();
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};

// Tell ThreadSanitizer that the writes of threads before they announce() are visible to threads
// that see() after a meeting. In other builds they do nothing.
void announce(void* token);
void see(void* token);

// Runs the threads of a GPU's block in turn, each on its own stack: one has the processor until it
// waits for others. ThreadSanitizer is told that they are threads, so that it finds two of them
// using the same memory with no barrier between: switching itself orders nothing, nor does it
// between neighbouring blocks. Only one thread may use a team.
class FiberTeam {
 public:
  FiberTeam();
  ~FiberTeam();
  FiberTeam(const FiberTeam&) = delete;
  FiberTeam& operator=(const FiberTeam&) = delete;

  // Calls thread(t) on fiber t, for each t below `threads`; blocks of odd numbers begin with the
  // last. Aborts, naming the threads and what they wait for, if they can never meet.
  void run(std::int64_t block, int threads, FunctionRef<void(int)> thread);

  // From within thread t: waits until all threads of its warp, or of the block, are in such a call.
  // Aborts if they meet in a different call.
  void meet_warp(int t, std::string_view what);
  void meet_block(int t, std::string_view what);

  // Ends a launch: the caller sees everything that all blocks did.
  void join();

 private:
  struct Fiber;
  struct Meeting {
    int first = 0, count = 0, arrived = 0;
  };

  Fiber& fiber_of(int t);
  void begin(int t);
  void work();
  void resume(Fiber& fiber);
  void leave(ucontext_t& context);
  void meet(int t, Meeting& meeting, std::string_view what);
  [[noreturn]] void tell_who_waits();
  static void enter(unsigned low, unsigned high);

  std::vector<std::unique_ptr<Fiber>> fibers_;  // of kSets blocks in turn
  ucontext_t scheduler_ = {};
  void* scheduler_identity_ = nullptr;  // ThreadSanitizer's
  Fiber* running_ = nullptr;
  // The state of the block that runs.
  std::int64_t block_ = 0;
  int threads_ = 0;
  const FunctionRef<void(int)>* thread_ = nullptr;
  std::vector<Meeting> warps_;
  Meeting all_;
  int ended_ = 0;
};

// Returns the team of this process, for kernels of one thread at a time: stacks and
// ThreadSanitizer's records of threads are made only once.
FiberTeam& fiber_team();

}  // namespace terrace::test
