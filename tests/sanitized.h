#pragma once

#include <utility>
#include <vector>

namespace terrace {

// Whether this is a build for a sanitizer, where all takes many times as long: tests that draw
// their cases draw fewer there.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// The cases of a test, and those that it has there.
template <typename Case>
std::vector<Case> fewer_if_sanitized(std::vector<Case> all, std::vector<Case> sanitized) {
  return kSanitized ? std::move(sanitized) : std::move(all);
}

}  // namespace terrace
