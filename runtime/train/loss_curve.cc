#include "runtime/train/loss_curve.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace terrace {
namespace {

constexpr std::size_t kBars = 40;
constexpr auto kHeights = std::to_array<std::string_view>(
    {"\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"});

}  // namespace

std::vector<LossCurve::Mean> LossCurve::joined_pairs(const std::vector<Mean>& means) {
  std::vector<Mean> joined;
  for (std::size_t i = 0; i < means.size(); i += 2) {
    joined.push_back(means[i]);
    if (i + 1 == means.size()) break;
    joined.back().sum += means[i + 1].sum;
    joined.back().steps += means[i + 1].steps;
  }
  return joined;
}

void LossCurve::add(double loss) {
  if (means_.empty() || means_.back().steps == steps_of_each_) {
    if (means_.size() == 2 * kBars) {
      means_ = joined_pairs(means_);
      steps_of_each_ *= 2;
    }
    means_.emplace_back();
  }
  means_.back().sum += loss;
  ++means_.back().steps;
}

std::string LossCurve::text() const {
  if (means_.size() < 2) return "";
  std::vector<double> losses;
  for (const Mean& mean : means_.size() > kBars ? joined_pairs(means_) : means_) {
    losses.push_back(mean.sum / static_cast<double>(mean.steps));
  }
  const auto [least, most] = std::ranges::minmax(losses);
  const double range = most - least;
  std::string bars;
  for (const double loss : losses) {
    const double part = range > 0 ? (loss - least) / range : 0;
    const auto height = static_cast<std::size_t>(std::lround(7 * part));
    bars += kHeights.at(std::min(height, kHeights.size() - 1));
  }
  return bars;
}

bool has_utf8_locale() {
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string locale(value);
    std::ranges::transform(locale, locale.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return false;
}

}  // namespace terrace
