#pragma once

#include <cstdint>
#include <map>
#include <string>

// Runs what mesh_combinations.h draws, and compares it.
namespace terrace {

struct MeshTally {
  int groups = 0;
  int runs = 0;
  int refused = 0;
  int without_clipping = 0;
  int with_stages = 0;
  int head_alone = 0;         // a last stage with nothing but the head
  int corner_head_alone = 0;  // of these without clipping and with one micro-batch
  int near_least_budget = 0;
  int as_processes = 0;
  int resumed = 0;
  int on_another_mesh = 0;  // resumed with other data- or tensor-parallel ranks
  int failures = 0;
  // Why runs were refused, by message without numbers, and of each the first.
  struct Refusals {
    int times = 0;
    std::string example;
  };
  std::map<std::string, Refusals> refusals;

  std::string text() const;
};

// Runs `count` variants, 4 to a group, and expects of each the rows and the final model of its
// group's plain run. A few may be refused. Each group has a seed of its own; the first one's is
// `offset` behind 1, or behind TERRACE_MATRIX_SEED where that is set.
MeshTally expect_matrix_holds(std::uint64_t offset, int count);

}  // namespace terrace
