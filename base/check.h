#pragma once

#include <string>

// nvcc 13 does not compile fmt 9 as C++20; a .cu file's checks compare numbers.
#if !defined(__CUDACC__)
#include <fmt/format.h>
#endif

// Checks of our own invariants: always on, print both operands, abort. Never for what a user, a
// file or a device may do wrong (base/error.h).
namespace terrace {

// Prints to standard error and aborts. This is the only place below runtime/ that prints.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& operands);

template <typename A, typename B>
[[noreturn]] void check_failed_on(const char* file, int line, const char* condition, const A& a,
                                  const B& b) {
#if defined(__CUDACC__)
  check_failed(file, line, condition, std::to_string(a) + " and " + std::to_string(b));
#else
  check_failed(file, line, condition, fmt::format("{} and {}", a, b));
#endif
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
