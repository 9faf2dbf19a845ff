#pragma once

#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <utility>

namespace terrace {

// A whole number in a JSON document, as a value of nlohmann's library. Throws std::invalid_argument
// where it is none, or does not fit T: get() cuts fractions off, and what it does with 1e300 is
// undefined.
template <std::integral T, typename Json>
T whole_number(const Json& value) {
  if (value.is_number_unsigned() && std::in_range<T>(value.template get<std::uint64_t>())) {
    return static_cast<T>(value.template get<std::uint64_t>());
  }
  if (value.is_number_integer() && !value.is_number_unsigned() &&
      std::in_range<T>(value.template get<std::int64_t>())) {
    return static_cast<T>(value.template get<std::int64_t>());
  }
  throw std::invalid_argument(value.dump() + " is no whole number that is possible here");
}

}  // namespace terrace
