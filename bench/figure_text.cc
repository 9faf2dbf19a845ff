#include "bench/figure_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "base/bytes.h"

namespace terrace {
namespace {

struct Step {
  std::string_view name;
  double factor;
};

constexpr auto kRates =
    std::to_array<Step>({{"KB/s", 1e6}, {"MB/s", 1e3}, {"GB/s", 1}, {"TB/s", 1e-3}});
constexpr auto kSeconds = std::to_array<Step>({{"ns", 1e9}, {"us", 1e6}, {"ms", 1e3}, {"s", 1}});
constexpr auto kGigaflops =
    std::to_array<Step>({{"MFLOP/s", 1e3}, {"GFLOP/s", 1}, {"TFLOP/s", 1e-3}});
constexpr auto kTeraflops =
    std::to_array<Step>({{"MFLOP/s", 1e6}, {"GFLOP/s", 1e3}, {"TFLOP/s", 1}});
constexpr auto kPerGigabyte = std::to_array<Step>({{"us/GB", 1e3}, {"ms/GB", 1}, {"s/GB", 1e-3}});
constexpr auto kBytes =
    std::to_array<Step>({{"B", 1}, {"KiB", 1.0 / kKiB}, {"MiB", 1.0 / kMiB}, {"GiB", 1.0 / kGiB}});
constexpr auto kTokens =
    std::to_array<Step>({{"tokens/s", 1}, {"ktokens/s", 1e-3}, {"Mtokens/s", 1e-6}});
constexpr auto kElements =
    std::to_array<Step>({{"elem/s", 1}, {"kelem/s", 1e-3}, {"Melem/s", 1e-6}, {"Gelem/s", 1e-9}});
constexpr auto kPerElement = std::to_array<Step>({{"B/elem", 1}});
constexpr auto kNanoseconds = std::to_array<Step>({{"ns/elem", 1}});

std::span<const Step> ladder_of(std::string_view unit) {
  if (unit == "GB/s") return kRates;
  if (unit == "s") return kSeconds;
  if (unit == "GFLOP/s") return kGigaflops;
  if (unit == "TFLOP/s") return kTeraflops;
  if (unit == "ms/GB") return kPerGigabyte;
  if (unit == "bytes") return kBytes;
  if (unit == "tokens/s") return kTokens;
  if (unit == "elements/s") return kElements;
  if (unit == "bytes/element") return kPerElement;
  if (unit == "ns/element") return kNanoseconds;
  return {};
}

}  // namespace

ShownUnit shown_unit(double value, std::string_view unit) {
  const std::span<const Step> ladder = ladder_of(unit);
  if (ladder.empty()) return {.name = std::string(unit)};
  // The steps go to larger units, in which the figure is smaller.
  const Step* best = &ladder.front();
  for (const Step& step : ladder) {
    if (std::abs(value) * step.factor >= 1) best = &step;
  }
  return {.name = std::string(best->name), .factor = best->factor};
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (!std::isfinite(value)) return "-";
  if (size >= 1e5 || (size < 1e-3 && size > 0)) return fmt::format("{:.3g}", value);
  const int digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3;
  return fmt::format("{:.{}f}", value, digits);
}

std::string figure_text(double value, std::string_view unit) {
  const ShownUnit shown = shown_unit(value, unit);
  const std::string number = short_number(value * shown.factor);
  return shown.name.empty() ? number : number + " " + shown.name;
}

std::string wrapped(std::string_view text, std::size_t indent) {
  std::string lines;
  std::string line(indent, ' ');
  std::size_t begin = line.size();
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
    if (line.size() > begin && line.size() + 1 + word.size() > kTableColumns) {
      lines += line + "\n";
      line = std::string(indent + 2, ' ');
      begin = line.size();
    }
    if (line.size() > begin) line += ' ';
    line += word;
  }
  return lines + line + "\n";
}

}  // namespace terrace
