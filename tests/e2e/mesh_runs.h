#pragma once

#include <cstdint>
#include <map>
#include <string>

// Runs the runs that mesh_combinations.h draws, and compares them.
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
  // Refusals of one reason, which is the message without numbers, with the first example.
  struct Refusals {
    int times = 0;
    std::string example;
  };
  std::map<std::string, Refusals> refusals;

  std::string text() const;
};

// Runs `count` variants, 4 to a group, and expects each to have the rows and the final model of its
// group's plain run. A few may be refused. Each group has a seed of its own. The first group's seed
// is `offset` above 1, or above TERRACE_MATRIX_SEED if that is set.
MeshTally expect_matrix_holds(std::uint64_t offset, int count);

}  // namespace terrace
