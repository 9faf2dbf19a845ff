#pragma once

namespace terrace {

// Whether this is a build for a sanitizer, where all takes many times as long: tests that draw
// their cases draw fewer there.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace terrace
