#include "runtime/step/router_figures.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace terrace {
namespace {

// Returns the nearest multiple of 2^-24. Sums of such numbers are exact below 2^29.
double on_grid(double value) {
  constexpr double kGrid = 0x1.0p24;
  return std::nearbyint(value * kGrid) / kGrid;
}

// The places of the numbers that a micro-batch's layers have together.
struct Places {
  explicit Places(std::size_t folded) : experts((folded - 4) / 2) {}

  std::size_t experts;
  std::size_t squares() const { return 2 * experts; }
  std::size_t rows() const { return 2 * experts + 1; }
  std::size_t touched() const { return 2 * experts + 2; }
  std::size_t share_max() const { return 2 * experts + 3; }
};

// Adds numbers of one place to numbers of another: sums, and the largest share.
void join(std::span<double> sums, std::span<const double> more) {
  const std::size_t last = sums.size() - 1;
  for (std::size_t i = 0; i < last; ++i) sums[i] += more[i];
  sums[last] = std::max(sums[last], more[last]);
}

}  // namespace

void fold_router_sums(std::span<const double> of_layers, std::span<double> folded) {
  const Places at(folded.size());
  const std::size_t stride = folded.size() - 2;
  TERRACE_CHECK_EQ(of_layers.size() % stride, std::size_t{0});
  for (std::size_t begin = 0; begin < of_layers.size(); begin += stride) {
    const std::span<const double> layer = of_layers.subspan(begin, stride);
    for (std::size_t i = 0; i < stride; ++i) folded[i] += on_grid(layer[i]);
    double choices = 0;
    double most = 0;
    for (std::size_t e = 0; e < at.experts; ++e) {
      choices += layer[e];
      most = std::max(most, layer[e]);
      folded[at.touched()] += layer[e] > 0 ? 1 : 0;
    }
    if (choices > 0) folded[at.share_max()] = std::max(folded[at.share_max()], most / choices);
  }
}

RouterFigureSum::RouterFigureSum(std::int32_t layers, std::int64_t folded)
    : layers_(layers),
      sums_(static_cast<std::size_t>(folded)),
      folded_(static_cast<std::size_t>(folded)) {}

void RouterFigureSum::begin() {
  std::ranges::fill(sums_, 0.0);
  micro_batches_ = 0;
  total_ = {};
}

void RouterFigureSum::add_stage(std::span<const double> folded) { join(sums_, folded); }

void RouterFigureSum::add_layers(std::span<const double> of_layers) {
  std::ranges::fill(folded_, 0.0);
  fold_router_sums(of_layers, folded_);
  add_stage(folded_);
}

// A micro-batch of nothing but padding has losses of 0.
void RouterFigureSum::end_micro_batch() {
  const Places at(sums_.size());
  const double rows = sums_[at.rows()];
  if (rows > 0) {
    double balance = 0;
    for (std::size_t e = 0; e < at.experts; ++e) {
      balance += (sums_[e] / rows) * (sums_[at.experts + e] / rows);
    }
    total_.balance_loss += static_cast<double>(at.experts) * balance;
    total_.z_loss += sums_[at.squares()] / rows;
  }
  total_.experts_touched += sums_[at.touched()] / layers_;
  total_.expert_share_max = std::max(total_.expert_share_max, sums_[at.share_max()]);
  ++micro_batches_;
  std::ranges::fill(sums_, 0.0);
}

RouterFigures RouterFigureSum::figures() const {
  RouterFigures mean = total_;
  const auto count = static_cast<double>(std::max<std::int64_t>(1, micro_batches_));
  mean.balance_loss /= count;
  mean.z_loss /= count;
  mean.experts_touched /= count;
  return mean;
}

}  // namespace terrace
