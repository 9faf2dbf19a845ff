#pragma once

#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <utility>

namespace terrace {

// Returns a whole number in a JSON document, given as a value of nlohmann's library. Throws
// std::invalid_argument where it is no whole number, or does not fit T. get() would cut fractions
// off, and its result for 1e300 is undefined.
template <std::integral T, typename Json>
T whole_number(const Json& value) {
  if (value.is_number_unsigned() && std::in_range<T>(value.template get<std::uint64_t>())) {
    return static_cast<T>(value.template get<std::uint64_t>());
  }
  if (value.is_number_integer() && !value.is_number_unsigned() &&
      std::in_range<T>(value.template get<std::int64_t>())) {
    return static_cast<T>(value.template get<std::int64_t>());
  }
  throw std::invalid_argument(value.dump() + " is not a whole number that is valid here");
}

}  // namespace terrace
