#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// Values as TOML literals, which read back to the same value.
namespace terrace {

// Returns whether a text can be in a TOML file, which is UTF-8.
bool is_utf8(const std::string& text);
std::string toml_string(std::string_view text);
std::string toml_strings(std::span<const std::string> texts);
std::string toml_integer(std::int64_t value);
std::string toml_unsigned(std::uint64_t value);  // in quotes past TOML's integers
std::string toml_number(double value);
std::string toml_numbers(std::span<const double> values);
std::string toml_size(std::size_t size_bytes);  // in the largest unit of 1024 that divides it
std::string toml_bool(bool value);
// Returns "on" or "off", in quotes; nothing if there is no value.
std::string toml_on_off(const std::optional<bool>& value);

// Returns the same size without quotes: "4GiB".
std::string size_text(std::size_t size_bytes);

}  // namespace terrace
