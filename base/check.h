#pragma once

#include <fmt/format.h>

#include <string>

// Checks of our own invariants. They are always on, print both operands and abort. They are never
// for mistakes of a user, a file or a device: those are errors (base/error.h).
namespace terrace {

// Prints to standard error and aborts. This is the only place below runtime/ that prints.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& operands);

template <typename A, typename B>
[[noreturn]] void check_failed_on(const char* file, int line, const char* condition, const A& a,
                                  const B& b) {
  check_failed(file, line, condition, fmt::format("{} and {}", a, b));
}

}  // namespace terrace

#define TERRACE_CHECK(condition)                                                        \
  do {                                                                                  \
    if (!(condition)) ::terrace::check_failed(__FILE__, __LINE__, #condition, "false"); \
  } while (false)

#define TERRACE_CHECK_OP_(op, a, b)                                                              \
  do {                                                                                           \
    const auto& terrace_a_ = (a);                                                                \
    const auto& terrace_b_ = (b);                                                                \
    if (!(terrace_a_ op terrace_b_)) {                                                           \
      ::terrace::check_failed_on(__FILE__, __LINE__, #a " " #op " " #b, terrace_a_, terrace_b_); \
    }                                                                                            \
  } while (false)

#define TERRACE_CHECK_EQ(a, b) TERRACE_CHECK_OP_(==, a, b)
#define TERRACE_CHECK_NE(a, b) TERRACE_CHECK_OP_(!=, a, b)
#define TERRACE_CHECK_LT(a, b) TERRACE_CHECK_OP_(<, a, b)
#define TERRACE_CHECK_LE(a, b) TERRACE_CHECK_OP_(<=, a, b)
