// Counts the allocations and copies of the process it is preloaded into (LD_PRELOAD), on any thread
// and in any library. Calls that a compiler has replaced by instructions are not counted.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>

#include "tests/guards/call_counts.h"

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
}

namespace {

using Copy = void* (*)(void*, const void*, std::size_t);

constinit terrace::CallCounts unseen{};  // counted into until the file is mapped
constinit std::atomic<terrace::CallCounts*> counts = &unseen;
constinit std::atomic<Copy> real_copy = nullptr;

void count_allocation() {
  counts.load(std::memory_order_relaxed)->allocations.fetch_add(1, std::memory_order_relaxed);
}

// Copies from the end that is not overwritten, for calls before the C library's function is known.
__attribute__((optimize("no-tree-loop-distribute-patterns"))) void* copy_bytes(void* target,
                                                                               const void* source,
                                                                               std::size_t bytes) {
  auto* out = static_cast<unsigned char*>(target);
  const auto* in = static_cast<const unsigned char*>(source);
  if (out <= in) {
    for (std::size_t i = 0; i < bytes; ++i) out[i] = in[i];
  } else {
    for (std::size_t i = bytes; i > 0; --i) out[i - 1] = in[i - 1];
  }
  return target;
}

void* counted_copy(void* target, const void* source, std::size_t bytes) {
  counts.load(std::memory_order_relaxed)
      ->copied_bytes.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  const Copy copy = real_copy.load(std::memory_order_relaxed);
  return copy == nullptr ? copy_bytes(target, source, bytes) : copy(target, source, bytes);
}

__attribute__((constructor)) void open_counts() {
  real_copy = reinterpret_cast<Copy>(dlsym(RTLD_NEXT, "memmove"));
  const char* path = std::getenv(terrace::kCallCountsPath);
  if (path == nullptr) return;
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  void* mapped =
      mmap(nullptr, sizeof(terrace::CallCounts), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return;
  auto* opened = static_cast<terrace::CallCounts*>(mapped);
  opened->pid = getpid();
  counts = opened;
}

}  // namespace

extern "C" {

void* malloc(std::size_t size) {
  count_allocation();
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  count_allocation();
  return __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) {
  count_allocation();
  return __libc_realloc(memory, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  count_allocation();
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  count_allocation();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  count_allocation();
  void* allocated = __libc_memalign(alignment, size);
  if (allocated == nullptr) return ENOMEM;
  *memory = allocated;
  return 0;
}
void* memcpy(void* target, const void* source, std::size_t bytes) {
  return counted_copy(target, source, bytes);
}
void* memmove(void* target, const void* source, std::size_t bytes) {
  return counted_copy(target, source, bytes);
}

}  // extern "C"
