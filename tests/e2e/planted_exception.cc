// Is loaded in front of the library fmt and replaces its vformat(). One call throws what a library
// may throw, whatever command is run. TERRACE_PLANTED_CALL says which call.

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string>

FMT_BEGIN_NAMESPACE

std::string vformat(string_view format, format_args arguments) {
  static std::atomic<int> calls{0};
  const char* const planted = std::getenv("TERRACE_PLANTED_CALL");
  if (planted != nullptr && ++calls == std::atoi(planted)) {
    throw std::out_of_range("vector::_M_range_check, planted");
  }
  std::string text;
  vformat_to(std::back_inserter(text), format, arguments);
  return text;
}

FMT_END_NAMESPACE
