#include "runtime/session/parameter_marks.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "base/hash.h"
#include "runtime/session/session_error.h"

namespace terrace {
namespace {

// The number of parts of a chunk that workers hash in parallel. A chunk on a GPU has only the
// first.
constexpr std::size_t kMarkParts = 8;
constexpr std::size_t kMarkElements = StateHome::kChunkElements / kMarkParts;
constexpr std::size_t kElementBytes = 2;  // of parameters beside a master

std::uint64_t hash_part(std::span<const std::byte> parameters, std::size_t part) {
  const std::size_t begin = std::min(part * kMarkElements * kElementBytes, parameters.size());
  const std::size_t size = std::min(kMarkElements * kElementBytes, parameters.size() - begin);
  return hash_bytes(parameters.subspan(begin, size));
}

std::span<const std::byte> sampled(std::span<const std::byte> parameters) {
  return parameters.first(std::min(parameters.size(), ParameterMemory::kSampleBytes));
}

}  // namespace

ParameterMarks::ParameterMarks(const Parts& parts)
    : parts_(parts), marks_(parts.home.chunks().size() * kMarkParts) {}

bool ParameterMarks::has_marks(std::size_t chunk) const {
  return parts_.home.chunks()[chunk].format.master != MasterForm::kParameter;
}

std::vector<std::size_t> ParameterMarks::marked(std::span<const std::size_t> chunks,
                                                bool on_gpu) const {
  std::vector<std::size_t> found;
  for (const std::size_t chunk : chunks) {
    if (has_marks(chunk) && parts_.memory.is_on_gpu(parts_.home.chunks()[chunk]) == on_gpu) {
      found.push_back(chunk);
    }
  }
  return found;
}

void ParameterMarks::sample(
    std::span<const std::size_t> chunks,
    FunctionRef<void(std::size_t chunk, std::span<const std::byte> bytes)> body) const {
  const std::vector<std::size_t> numbers = marked(chunks, true);
  std::vector<const StateChunk*> on_gpus;
  for (const std::size_t number : numbers) on_gpus.push_back(&parts_.home.chunks()[number]);
  parts_.memory.sample(
      on_gpus, [&](std::size_t i, std::span<const std::byte> bytes) { body(numbers[i], bytes); });
}

void ParameterMarks::take(std::size_t chunk, std::span<const std::byte> parameters) {
  if (!has_marks(chunk)) return;
  if (parts_.memory.is_on_gpu(parts_.home.chunks()[chunk])) {
    marks_[chunk * kMarkParts] = hash_bytes(sampled(parameters));
    return;
  }
  parts_.workers.parallel_for(kMarkParts, [&](std::int64_t part, int /*worker*/) {
    const auto i = static_cast<std::size_t>(part);
    marks_[chunk * kMarkParts + i] = hash_part(parameters, i);
  });
}

void ParameterMarks::take_all() {
  std::vector<std::size_t> all(parts_.home.chunks().size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  for (const std::size_t chunk : marked(all, false)) {
    take(chunk, parts_.memory.host_bytes(parts_.home.chunks()[chunk]));
  }
  sample(all, [&](std::size_t chunk, std::span<const std::byte> bytes) { take(chunk, bytes); });
}

void ParameterMarks::check(std::span<const std::size_t> chunks) const {
  std::atomic<std::int32_t> changed = -1;
  const std::vector<std::size_t> on_host = marked(chunks, false);
  parts_.workers.parallel_for(static_cast<std::int64_t>(on_host.size()), [&](std::int64_t i,
                                                                             int /*worker*/) {
    const std::size_t chunk = on_host[static_cast<std::size_t>(i)];
    const std::span<const std::byte> bytes = parts_.memory.host_bytes(parts_.home.chunks()[chunk]);
    for (std::size_t part = 0; part < kMarkParts; ++part) {
      if (hash_part(bytes, part) == marks_[chunk * kMarkParts + part]) continue;
      changed = parts_.home.chunks()[chunk].tensor;
    }
  });
  sample(chunks, [&](std::size_t chunk, std::span<const std::byte> bytes) {
    if (hash_bytes(bytes) == marks_[chunk * kMarkParts]) return;
    changed = parts_.home.chunks()[chunk].tensor;
  });
  if (changed < 0) return;
  throw SessionError(
      SessionProblem::kParameterChanged,
      fmt::format("parameter {} was changed after its last update, and its master would overwrite "
                  "the change",
                  parts_.table.tensor(changed).name),
      "call terrace_parameter_adopt() to continue training from the new values");
}

}  // namespace terrace
