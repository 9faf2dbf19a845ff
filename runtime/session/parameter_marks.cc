#include "runtime/session/parameter_marks.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "base/hash.h"
#include "runtime/session/session_error.h"

namespace terrace {
namespace {

// Parts of a chunk that workers hash side by side.
constexpr std::int64_t kMarkParts = 8;
constexpr std::int64_t kMarkElements = StateHome::kChunkElements / kMarkParts;

}  // namespace

ParameterMarks::ParameterMarks(const ParameterTable& table, const StateHome& home,
                               WorkerArena& workers)
    : table_(table),
      home_(home),
      workers_(workers),
      marks_(home.chunks().size() * static_cast<std::size_t>(kMarkParts)) {}

bool ParameterMarks::has_marks(std::size_t chunk) const {
  return home_.chunks()[chunk].format.master != MasterForm::kParameter;
}

std::uint64_t ParameterMarks::hash_part(std::size_t chunk, std::int64_t part) const {
  const StateChunk& of = home_.chunks()[chunk];
  const SessionTensor& tensor = table_.tensor(of.tensor);
  const std::int64_t begin = std::min(part * kMarkElements, of.elements);
  const std::int64_t end = std::min(begin + kMarkElements, of.elements);
  const std::size_t width = size_of(tensor.dtype);
  return hash_bytes({tensor.data + static_cast<std::size_t>(of.begin + begin) * width,
                     static_cast<std::size_t>(end - begin) * width});
}

void ParameterMarks::take(std::size_t chunk) {
  if (!has_marks(chunk)) return;
  workers_.parallel_for(kMarkParts, [&](std::int64_t part, int /*worker*/) {
    marks_[chunk * kMarkParts + static_cast<std::size_t>(part)] = hash_part(chunk, part);
  });
}

void ParameterMarks::check(std::span<const std::size_t> chunks) const {
  std::atomic<std::int32_t> changed = -1;
  workers_.parallel_for(static_cast<std::int64_t>(chunks.size()),
                        [&](std::int64_t i, int /*worker*/) {
                          const std::size_t chunk = chunks[static_cast<std::size_t>(i)];
                          if (!has_marks(chunk)) return;
                          for (std::int64_t part = 0; part < kMarkParts; ++part) {
                            const auto at = chunk * kMarkParts + static_cast<std::size_t>(part);
                            if (hash_part(chunk, part) != marks_[at])
                              changed = home_.chunks()[chunk].tensor;
                          }
                        });
  if (changed < 0) return;
  throw SessionError(
      SessionProblem::kParameterChanged,
      fmt::format("parameter {} is not what its last update wrote, and its master would "
                  "overwrite it",
                  table_.tensor(changed).name),
      "call terrace_parameter_adopt() to train on from the new values");
}

}  // namespace terrace
