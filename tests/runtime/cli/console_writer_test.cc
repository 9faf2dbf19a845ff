#include "runtime/cli/console_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

namespace terrace {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr auto kForLong = std::chrono::minutes(2);

// A pipe that this test reads.
class Pipe {
 public:
  Pipe() {
    std::signal(SIGPIPE, SIG_IGN);  // as training does
    EXPECT_EQ(::pipe(ends_.data()), 0);
  }
  ~Pipe() {
    close_writer();
    ::close(ends_[0]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int writer() const { return ends_[1]; }
  void close_writer() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }
  void fill() const {
    const int flags = ::fcntl(ends_[1], F_GETFL);
    ::fcntl(ends_[1], F_SETFL, flags | O_NONBLOCK);
    const std::string page(4096, '.');
    while (::write(ends_[1], page.data(), page.size()) > 0) {
    }
    ::fcntl(ends_[1], F_SETFL, flags);
  }
  std::string read_to_end() const { return read_until(std::nullopt); }
  // Reads until `text` has come, or to the end if there is no text to wait for.
  std::string read_until(const std::optional<std::string>& text) const {
    std::string all;
    std::array<char, 4096> piece;
    while (!text || all.find(*text) == std::string::npos) {
      const ssize_t size = ::read(ends_[0], piece.data(), piece.size());
      if (size <= 0) break;
      all.append(piece.data(), static_cast<std::size_t>(size));
    }
    return all;
  }

 private:
  std::array<int, 2> ends_ = {-1, -1};
};

TEST(ConsoleWriter, WritesAllInOrderToAReaderThatReadsLate) {
  Pipe pipe;
  std::string expected;
  std::string got;
  {
    ConsoleWriter writer(pipe.writer(), {.queued_bytes = 4 * kMiB, .grace = kForLong});
    for (int line = 0; line < 20'000; ++line) {  // more than a pipe holds
      const std::string text = fmt::format("line {}\n", line);
      writer.write(text);
      expected += text;
    }
    std::jthread reader([&] { got = pipe.read_until("line 19999\n"); });
  }
  EXPECT_EQ(got, expected);
}

// A reader that stands still stops nobody, and is told what it has missed.
TEST(ConsoleWriter, DropsWhatDoesNotFitAndSaysHowManyLines) {
  constexpr int kLines = 1000;
  Pipe pipe;
  pipe.fill();
  std::string got;
  std::jthread reader;
  {
    ConsoleWriter writer(pipe.writer(), {.queued_bytes = 100, .grace = kForLong});
    for (int line = 0; line < kLines; ++line) writer.write(fmt::format("line {}\n", line));
    reader = std::jthread([&] { got = pipe.read_to_end(); });
  }
  pipe.close_writer();  // lines may be dropped more than once, so the end is the pipe's
  reader.join();
  got.erase(0, got.find("line 0"));
  EXPECT_THAT(got, StartsWith("line 0\nline 1\n"));
  int accounted = 0;
  std::istringstream lines(got);
  for (std::string line; std::getline(lines, line);) {
    int dropped = 1;  // or the line itself
    std::sscanf(line.c_str(), "terrace: %d lines were dropped here", &dropped);
    accounted += dropped;
  }
  EXPECT_EQ(accounted, kLines);
}

// The writer's thread goes on waiting, so the pipe stays until the process ends.
TEST(ConsoleWriter, GivesUpOnAReaderThatDoesNotComeBack) {
  static Pipe* const pipe = new Pipe;
  pipe->fill();
  ConsoleWriter(pipe->writer(), {.queued_bytes = kMiB, .grace = std::chrono::milliseconds(20)})
      .write("never read\n");
}

// Other processes that share the file may have made it non-blocking.
TEST(ConsoleWriter, WaitsForAFileThatDoesNotBlock) {
  Pipe pipe;
  pipe.fill();
  ::fcntl(pipe.writer(), F_SETFL, O_NONBLOCK);
  std::string got;
  {
    ConsoleWriter writer(pipe.writer(), {.queued_bytes = kMiB, .grace = kForLong});
    writer.write("all the same\n");
    got = pipe.read_until("all the same\n");
  }
  EXPECT_THAT(got, EndsWith(".all the same\n"));
}

TEST(ConsoleWriter, SaysNothingToAFileThatCannotBeWritten) {
  ConsoleWriter writer(-1);
  writer.write("nobody hears it\n");
}

}  // namespace
}  // namespace terrace
