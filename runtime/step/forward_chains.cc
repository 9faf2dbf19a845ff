#include "runtime/step/forward_chains.h"

#include <algorithm>
#include <utility>

namespace terrace {

std::int32_t ForwardChains::add(std::int32_t unit, std::int32_t micro_batch,
                                const std::vector<std::int32_t>& inputs) {
  const auto m = static_cast<std::size_t>(micro_batch);
  if (chains_.size() <= m) chains_.resize(m + 1);
  std::vector<std::int32_t>& chain = chains_[m];
  const std::int32_t before = last_of(unit, micro_batch);
  Forward forward{
      .unit = unit, .micro_batch = micro_batch, .use = before < 0 ? 0 : at(before).use + 1};
  for (const std::int32_t named : inputs) {
    const std::int32_t input = last_of(named, micro_batch);
    if (input >= 0) forward.inputs.push_back(input);
  }
  if (inputs.empty() && !chain.empty()) forward.inputs.push_back(chain.back());
  forwards_.push_back(std::move(forward));
  chain.push_back(static_cast<std::int32_t>(forwards_.size()) - 1);
  return chain.back();
}

std::int32_t ForwardChains::end(std::int32_t unit, std::int32_t micro_batch) {
  const auto m = static_cast<std::size_t>(micro_batch);
  if (chains_.size() <= m) return -1;
  for (auto number = chains_[m].rbegin(); number != chains_[m].rend(); ++number) {
    Forward& forward = forwards_[index(*number)];
    if (forward.unit != unit || forward.has_backward) continue;
    forward.has_backward = true;
    return *number;
  }
  return -1;
}

std::int32_t ForwardChains::last_of(std::int32_t unit, std::int32_t micro_batch) const {
  const auto m = static_cast<std::size_t>(micro_batch);
  if (chains_.size() <= m) return -1;
  const std::vector<std::int32_t>& chain = chains_[m];
  const auto found = std::find_if(chain.rbegin(), chain.rend(),
                                  [&](std::int32_t number) { return at(number).unit == unit; });
  return found == chain.rend() ? -1 : *found;
}

}  // namespace terrace
