#include "base/address_space.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "base/bytes.h"

namespace terrace {

std::size_t AddressSpace::left_bytes() const {
  if (!limit_bytes) return std::numeric_limits<std::size_t>::max();
  return *limit_bytes - std::min(*limit_bytes, used_bytes);
}

AddressSpace read_address_space() {
  AddressSpace space;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return space;
  space.limit_bytes = limit.rlim_cur;
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  space.used_bytes = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return space;
}

std::size_t thread_stack_bytes() {
  std::size_t bytes = 0;
  pthread_attr_t attributes;
  if (::pthread_getattr_default_np(&attributes) != 0) return bytes;
  ::pthread_attr_getstacksize(&attributes, &bytes);
  ::pthread_attr_destroy(&attributes);
  return bytes;
}

std::string remedy_for_threads() {
  const AddressSpace space = read_address_space();
  const std::size_t stack = thread_stack_bytes();
  // Besides its stack, a thread takes a page that is never touched and some memory of its own.
  if (space.left_bytes() > stack + kMiB) return "raise the limit on threads (ulimit -u)";
  return fmt::format(
      "raise the limit on the address space (ulimit -v): {} of {} are left, and the stack of a "
      "thread takes {}",
      format_size(space.left_bytes()), format_size(*space.limit_bytes), format_size(stack));
}

}  // namespace terrace
