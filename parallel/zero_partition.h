#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace terrace {

// The ranks over which ZeRO stage 3 divides each state. Data-parallel ranks may form islands
// (parallel/mesh.h). If a state is divided over the ranks of an island only, every island holds all
// of it, and gathering it needs no other island.
enum class ZeroPartition : std::uint8_t {
  kAll,   // all states over all data-parallel ranks
  kHpz,   // parameters over an island: ZeRO++ (Wang et al. 2023, arXiv:2306.10209)
  kHsdp,  // all states over an island: MiCS (Zhang et al. 2022, arXiv:2205.00119), and the hybrid
          // sharding of PyTorch FSDP (Zhao et al. 2023, arXiv:2304.11277)
};

// The names on the command line, in the order of the values.
inline constexpr std::array<std::string_view, 3> kZeroPartitions = {"all", "hpz", "hsdp"};

constexpr std::string_view name_of(ZeroPartition partition) {
  return kZeroPartitions.at(static_cast<std::size_t>(partition));
}

}  // namespace terrace
