#include "parallel/mpi/peer_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

namespace terrace {
namespace {

using Values = std::array<std::uint64_t, 4>;

// A child process that has changed its copy of `values`, for others to read from.
class Child {
 public:
  explicit Child(Values& values) {
    std::array<int, 2> ready{};
    EXPECT_EQ(::pipe(ready.data()), 0);
    EXPECT_EQ(::pipe(end_.data()), 0);
    process_ = ::fork();
    EXPECT_NE(process_, -1);
    if (process_ == 0) {
      values.fill(7);
      char letter = 'r';
      if (::write(ready[1], &letter, 1) != 1) ::_exit(1);
      ::close(end_[1]);
      ::_exit(::read(end_[0], &letter, 1) == 0 ? 0 : 1);  // until the parent closes its side
    }
    ::close(ready[1]);
    char letter = 0;
    EXPECT_EQ(::read(ready[0], &letter, 1), 1);
    for (const int side : {ready[0], end_[0]}) ::close(side);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { end(); }

  void end() {
    if (process_ <= 0) return;
    ::close(end_[1]);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }
  pid_t process() const { return process_; }

 private:
  pid_t process_ = 0;
  std::array<int, 2> end_{};
};

TEST(PeerMemory, IsReadWhileTheProcessLives) {
  Values values = {1, 2, 3, 4};
  Child child(values);
  const pid_t process = child.process();
  const auto* address = reinterpret_cast<const std::byte*>(values.data());
  Values found{};
  const int error_number =
      read_memory_of(process, address, std::as_writable_bytes(std::span(found)));
  if (error_number == EPERM || error_number == ENOSYS) GTEST_SKIP() << "it is forbidden here";
  ASSERT_EQ(error_number, 0);
  EXPECT_EQ(found, (Values{7, 7, 7, 7}));
  EXPECT_EQ(values, (Values{1, 2, 3, 4}));
  EXPECT_EQ(read_memory_of(process, nullptr, std::as_writable_bytes(std::span(found))), EFAULT);
  EXPECT_EQ(read_memory_of(process, nullptr, {}), 0);
  child.end();
  EXPECT_EQ(read_memory_of(process, address, std::as_writable_bytes(std::span(found))), ESRCH);
}

}  // namespace
}  // namespace terrace
