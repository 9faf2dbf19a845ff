#include <fmt/format.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>

// If this is linked into a test program, it keeps the whole process on one processor that no other
// such process has. The lanes of a tiny model's step hand each other work every few microseconds.
// Waking each other across processors would take most of the test's time. Bits do not depend on
// this. Programs that are about threads are not linked with it.
namespace terrace {
namespace {

// Returns whether the processor now belongs to this process until it ends: a socket's name has one
// owner.
bool reserve(int processor) {
  const int owner = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (owner < 0) return false;
  const std::string name = fmt::format("terrace-test-processor-{}", processor);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // no file: it begins with a zero
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::bind(owner, reinterpret_cast<const sockaddr*>(&address), size) == 0) return true;
  ::close(owner);
  return false;
}

// If all processors are taken, the process stays on all of them.
bool stay_on_one_processor() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &allowed) || !reserve(processor)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    return ::sched_setaffinity(0, sizeof one, &one) == 0;
  }
  return false;
}

// Runs before main(), and so before any thread.
[[maybe_unused]] const bool kIsOnOneProcessor = stay_on_one_processor();

}  // namespace
}  // namespace terrace
