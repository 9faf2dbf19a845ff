#pragma once

#include <utility>
#include <vector>

namespace terrace {

// Whether this is a build for a sanitizer. Everything takes many times as long there, so tests that
// draw their cases draw fewer.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Returns the cases of a test: `sanitized` in a build for a sanitizer, `all` in any other build.
template <typename Case>
std::vector<Case> fewer_if_sanitized(std::vector<Case> all, std::vector<Case> sanitized) {
  return kSanitized ? std::move(sanitized) : std::move(all);
}

}  // namespace terrace
