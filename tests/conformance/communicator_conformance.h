#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "parallel/communicator.h"

// The behaviour required of every Communicator. The tests are in communicator_conformance.cc; each
// implementation registers itself with INSTANTIATE_TEST_SUITE_P(..., CommunicatorConformanceTest,
// ...).
namespace terrace {

// Runs a body once per rank, on communicators made for this run, and returns when this process's
// ranks are done. Ranks of other processes run it at the same time.
class RankRunner {
 public:
  virtual ~RankRunner() = default;
  virtual void run(const CommunicatorOptions& options,
                   const std::function<void(Communicator&)>& body) = 0;
  // Called at the end of a body that throws CommError on purpose. Holds this rank back until all
  // ranks have come here. It does not use the communicator, which is aborted.
  virtual void meet() = 0;
};

// An odd number above a power of two. Not used with sanitizers, because every rank makes the
// numbers of all ranks.
constexpr int kManyRanks = 7;

struct CommunicatorFactory {
  std::string name;
  int ranks = 1;
  std::unique_ptr<RankRunner> (*make)(int ranks);
};

// GoogleTest looks for this name. NOLINTNEXTLINE(readability-identifier-naming)
inline void PrintTo(const CommunicatorFactory& factory, std::ostream* out) { *out << factory.name; }

class CommunicatorConformanceTest : public testing::TestWithParam<CommunicatorFactory> {
 protected:
  void run(const std::function<void(Communicator&)>& body) { runner_->run({}, body); }

  std::unique_ptr<RankRunner> runner_ = GetParam().make(GetParam().ranks);
};

}  // namespace terrace
