#pragma once

#include <functional>
#include <utility>

#include "runtime/compare/hash_comparison.h"
#include "tests/runtime/engine/ranks_fixture.h"

// Small models that are trained with hashes in memory.
namespace terrace {

// Keeps the hashes of a rank as a file of them reads back.
class HashMemory final : public HashSink {
 public:
  void describe(const HashTable& table) override { recorded.tables.push_back(table); }
  void add(std::int64_t step, std::span<const std::uint64_t> hashes) override {
    recorded.rows[step] = {recorded.tables.size() - 1, {hashes.begin(), hashes.end()}};
  }

  RecordedHashes recorded;
};

inline constexpr std::int64_t kRecordedSteps = 3;

inline RecordedRun record(const ModelRuntimeOptions& options, Curve* curve = nullptr) {
  HashMemory memory;
  ModelRuntimeOptions recording = options;
  recording.hashes = &memory;
  const TrainedRun trained = train_tiny(recording, kRecordedSteps);
  if (curve != nullptr) *curve = trained.curve;
  RecordedRun run;
  run.hashes[0] = std::move(memory.recorded);
  return run;
}

// Does the same with ranks as threads.
inline RecordedRun record_ranks(const ModelRuntimeOptions& options, const MeshShape& shape,
                                std::int32_t stage) {
  const auto count = static_cast<std::size_t>(shape.ranks());
  auto worlds = make_thread_communicators(shape.ranks(), "world");
  std::vector<HashMemory> memories(count);
  ModelRuntimeOptions of_stage = options;
  of_stage.zero_stage = stage;
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < count; ++r) {
    threads.emplace_back([&, r] {
      as_rank(*worlds[r], of_stage, shape, [&](ModelRuntimeOptions own) {
        own.hashes = &memories[r];
        train_tiny(own, kRecordedSteps);
      });
    });
  }
  threads.clear();
  RecordedRun run;
  for (std::size_t r = 0; r < count; ++r) {
    run.hashes[static_cast<int>(r)] = std::move(memories[r].recorded);
  }
  return run;
}

}  // namespace terrace
