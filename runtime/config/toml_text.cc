#include "runtime/config/toml_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <limits>

#include "base/bytes.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace {

bool is_utf8(const std::string& text) { return valid_utf8_prefix(text) == text.size(); }

std::string toml_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += fmt::format("\\u{:04X}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string toml_strings(std::span<const std::string> texts) {
  std::string list = "[";
  for (const std::string& text : texts) {
    if (list.size() > 1) list += ", ";
    list += toml_string(text);
  }
  return list + "]";
}

std::string toml_integer(std::int64_t value) { return fmt::format("{}", value); }

std::string toml_unsigned(std::uint64_t value) {
  const bool fits = value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return fits ? fmt::format("{}", value) : fmt::format("\"{}\"", value);
}

std::string toml_number(double value) { return fmt::format("{}", value); }

std::string toml_numbers(std::span<const double> values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

std::string toml_size(std::size_t size_bytes) { return toml_string(size_text(size_bytes)); }

std::string toml_bool(bool value) { return value ? "true" : "false"; }

std::string toml_on_off(const std::optional<bool>& value) {
  return value ? toml_string(*value ? "on" : "off") : std::string{};
}

std::string size_text(std::size_t size_bytes) {
  struct Unit {
    const char* name;
    std::size_t bytes;
  };
  constexpr auto kUnits =
      std::to_array<Unit>({{"TiB", kTiB}, {"GiB", kGiB}, {"MiB", kMiB}, {"KiB", kKiB}});
  for (const Unit& unit : kUnits) {
    if (size_bytes >= unit.bytes && size_bytes % unit.bytes == 0) {
      return fmt::format("{}{}", size_bytes / unit.bytes, unit.name);
    }
  }
  return fmt::format("{}", size_bytes);
}

}  // namespace terrace
