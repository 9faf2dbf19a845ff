#include "runtime/report/number_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>

#include "base/bytes.h"

namespace terrace::report {
namespace {

// Shortens "3e-05" to "3e-5" and drops a "+".
std::string short_exponent(std::string text) {
  const std::size_t e = text.find('e');
  if (e == std::string::npos) return text;
  std::string exponent = text.substr(e + 1);
  std::string sign;
  if (exponent.front() == '-') sign = "-";
  if (exponent.front() == '-' || exponent.front() == '+') exponent.erase(0, 1);
  exponent.erase(0, std::min(exponent.find_first_not_of('0'), exponent.size() - 1));
  return text.substr(0, e + 1) + sign + exponent;
}

}  // namespace

std::string count_text(std::int64_t value) {
  std::string digits = fmt::format("{}", value);
  const std::size_t first = digits.front() == '-' ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "not a number" : "infinite";
  const double size = std::abs(value);
  if (size >= 1000 && size < 1e15) return count_text(std::llround(value));
  return short_exponent(fmt::format("{:.3g}", value));
}

std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size >= 1e9) return short_exponent(fmt::format("{:.3g}", value));
  if (size >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (size >= 1e3) return fmt::format("{:g}k", value / 1e3);
  if (size < 1e-3) return short_exponent(fmt::format("{:.3g}", value));
  return fmt::format("{:.4g}", value);
}

std::string time_text(double seconds) {
  if (!std::isfinite(seconds)) return "unknown";
  const double size = std::abs(seconds);
  constexpr double kMinute = 60;
  constexpr double kHour = 3600;
  if (size == 0) return "0 s";
  if (size < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  if (size < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (size < 2 * kMinute) return fmt::format("{:.3g} s", seconds);
  if (size < 2 * kHour) return fmt::format("{:.0f} min", seconds / kMinute);
  const auto minutes = static_cast<std::int64_t>(std::llround(seconds / kMinute));
  return fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

std::string percent_text(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string bytes_text(double bytes) {
  constexpr double kMost = 9e18;
  if (!(bytes >= 0) || bytes > kMost) return "unknown";
  return format_size(static_cast<std::size_t>(bytes));
}

std::string rate_text(double bytes_per_second) {
  constexpr double kLeastGigabytes = 1e8;
  if (bytes_per_second >= kLeastGigabytes) return format_rate(bytes_per_second);
  return fmt::format("{:.3g} MB/s", bytes_per_second * 1e-6);
}

std::string date_text(double seconds_since_1970) {
  if (!(std::abs(seconds_since_1970) < 1e12)) return "unknown";
  const auto time = static_cast<std::time_t>(seconds_since_1970);
  std::tm parts{};
  if (gmtime_r(&time, &parts) == nullptr) return "unknown";
  std::array<char, 48> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &parts);
  return text.data();
}

std::string counted(std::int64_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count_text(count), noun, count == 1 ? "" : "s");
}

}  // namespace terrace::report
