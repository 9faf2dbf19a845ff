#include "runtime/config/flag_value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "base/bytes.h"
#include "base/check.h"
#include "base/error.h"
#include "base/nearest_name.h"

namespace terrace {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Returns the text without the underscores between digits; unset where an underscore is elsewhere.
std::optional<std::string> without_underscores(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      plain += text[i];
    } else if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) {
      return std::nullopt;
    }
  }
  return plain;
}

template <typename T>
std::optional<T> read_all(const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

std::optional<double> read_number(const std::string& text) {
  const std::optional<std::string> plain = without_underscores(text);
  const std::optional<double> value = plain ? read_all<double>(*plain) : std::nullopt;
  return value && std::isfinite(*value) ? value : std::nullopt;
}

// Reads a whole number. Digits are read exactly; a number like 5e8 is read as a double, up to the
// limit to which doubles hold all whole numbers.
template <typename T>
std::optional<T> read_whole(const std::string& text) {
  const std::optional<std::string> plain = without_underscores(text);
  if (!plain) return std::nullopt;
  if (const std::optional<T> exact = read_all<T>(*plain)) return exact;
  const std::optional<double> number = read_all<double>(*plain);
  if (!number || std::trunc(*number) != *number || std::abs(*number) > 0x1p53) return std::nullopt;
  if (std::is_unsigned_v<T> && *number < 0) return std::nullopt;
  return static_cast<T>(*number);
}

}  // namespace

const std::string& FlagValue::text() const {
  TERRACE_CHECK_EQ(texts_.size(), std::size_t{1});
  return texts_.front();
}

void FlagValue::refuse(const std::string& why, const std::string& remedy) const {
  throw ConfigError(fmt::format("{} {}: {}", where_, fmt::join(texts_, " "), why), remedy);
}

void FlagValue::not_built(const std::string& remedy) const {
  throw ConfigError(fmt::format("{} {} is not built yet", where_, fmt::join(texts_, " ")), remedy);
}

const std::string& FlagValue::name() const {
  if (text().empty()) refuse("is empty", "give it a value, or leave the flag out");
  return text();
}

std::int64_t FlagValue::integer(std::int64_t least, std::int64_t most) const {
  const std::optional<std::int64_t> value = read_whole<std::int64_t>(text());
  if (!value) refuse("not a whole number", "write one such as 42, 10_000 or 5e8");
  if (*value < least) refuse("too small", fmt::format("give at least {}", least));
  if (*value > most) refuse("too large", fmt::format("give at most {}", most));
  return *value;
}

std::uint64_t FlagValue::unsigned_integer() const {
  const std::optional<std::uint64_t> value = read_whole<std::uint64_t>(text());
  if (!value) refuse("not a whole number of at least 0", "write one such as 42, 10_000 or 5e8");
  return *value;
}

double FlagValue::number(double least) const {
  const std::optional<double> value = read_number(text());
  if (!value) refuse("not a number", "write one such as 0.1 or 3e-4");
  if (*value < least) refuse("too small", fmt::format("give at least {}", least));
  return *value;
}

double FlagValue::number(double least, double most) const {
  const double value = number(std::numeric_limits<double>::lowest());
  if (value < least || value > most) {
    refuse("out of range", fmt::format("give a number from {} to {}", least, most));
  }
  return value;
}

double FlagValue::positive_number() const {
  const double value = number(std::numeric_limits<double>::lowest());
  if (value <= 0) refuse("too small", "give more than 0");
  return value;
}

double FlagValue::fraction() const {
  const double value = number(0);
  if (value >= 1) refuse("too large", "give less than 1");
  return value;
}

std::size_t FlagValue::size() const {
  std::size_t value = 0;
  try {
    value = parse_size(text());
  } catch (const ConfigError& error) {
    refuse("not a size", error.remedy());
  }
  if (value == 0) refuse("a size of 0", "give at least one byte, or leave the flag out");
  return value;
}

StepRange FlagValue::step_range() const {
  const std::string& range = text();
  const std::size_t colon = range.find(':');
  if (colon != std::string::npos) {
    const auto first = read_whole<std::int64_t>(range.substr(0, colon));
    const auto last = read_whole<std::int64_t>(range.substr(colon + 1));
    if (first && last && *first >= 1 && *first <= *last) return {*first, *last};
  }
  refuse(fmt::format("'{}' is not a range of steps", range),
         "write FIRST:LAST, counted from 1, for example 3:5");
}

bool FlagValue::on_off() const {
  constexpr auto kNames = std::to_array<std::string_view>({"off", "on"});
  return choice(kNames) == 1;
}

std::size_t FlagValue::choice(std::span<const std::string_view> names) const {
  const auto found = std::find(names.begin(), names.end(), text());
  if (found == names.end()) {
    refuse("unknown", fmt::format("did you mean {}? It is one of {}", nearest_name(text(), names),
                                  fmt::join(names, ", ")));
  }
  return static_cast<std::size_t>(found - names.begin());
}

}  // namespace terrace
