#pragma once

#include <gtest/gtest.h>
#include <terrace.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "base/function_ref.h"
#include "tests/sanitized.h"

// The memory that a process has, and the part of it that is a session's.
namespace terrace::test {

// Returns the resident bytes of this process.
inline std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  file >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// Returns the bytes that a ledger has for the host.
inline std::int64_t host_bytes_of(
    FunctionRef<terrace_error(char* text, std::uint64_t capacity, std::uint64_t* size)> ledger) {
  std::uint64_t size = 0;
  EXPECT_EQ(ledger(nullptr, 0, &size), TERRACE_OK);
  std::string text(size, '\0');
  EXPECT_EQ(ledger(text.data(), size, &size), TERRACE_OK);
  const std::string key = "\"peak_bytes\":";
  return std::stoll(text.substr(text.find(key, text.find("\"host\"")) + key.size()));
}

// Expects that memory was given back. Sanitizers keep freed memory and their own data about memory
// that was given back, so nothing is checked with them.
inline void expect_given_back(std::int64_t before, std::int64_t held) {
  if (!kSanitized) {
    EXPECT_LT(resident_bytes(), before - held / 10 * 9) << held;
  }
}

}  // namespace terrace::test
