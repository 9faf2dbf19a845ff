#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace terrace {

// The course of a run's losses as a line of bars. Keeps means of equally many steps, at most twice
// as many as the line has bars, so a run of any length takes little memory.
class LossCurve {
 public:
  void add(double loss);
  // Returns up to 40 bars of eight heights, the lowest loss as the lowest bar; "" for fewer than
  // two steps. The last bar may stand for fewer steps than the others.
  std::string text() const;

 private:
  struct Mean {
    double sum = 0;
    std::int64_t steps = 0;
  };
  static std::vector<Mean> joined_pairs(const std::vector<Mean>& means);

  std::vector<Mean> means_;
  std::int64_t steps_of_each_ = 1;
};

// Returns whether the locale that the environment names has UTF-8, as the bars need.
bool has_utf8_locale();

}  // namespace terrace
