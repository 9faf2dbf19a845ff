#include "runtime/data/document_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/error.h"
#include "runtime/data/megatron_index.h"
#include "runtime/data/readable_file.h"

namespace terrace {
namespace {

constexpr const char* kMakeIndexAgain = "create it again, together with the file of ids";

std::uint64_t last_end(const std::string& path, std::uint64_t size) {
  std::uint64_t last = 0;
  const ReadableFile file(path);
  file.read(size - sizeof(last), std::as_writable_bytes(std::span(&last, 1)));
  return last;
}

}  // namespace

DocumentIndex open_ends(const std::string& path, std::int64_t tokens) {
  const std::uint64_t size = size_of_file(path);
  if (size % sizeof(std::uint64_t) != 0) {
    throw CorruptData(fmt::format("{}: its {} bytes are not a whole number of document ends of 8 "
                                  "bytes",
                                  path, size),
                      kMakeIndexAgain);
  }
  const std::uint64_t last = size == 0 ? 0 : last_end(path, size);
  if (last != static_cast<std::uint64_t>(tokens)) {
    throw CorruptData(fmt::format("{}: its last document ends at token {}, but there are {} tokens",
                                  path, last, tokens),
                      kMakeIndexAgain);
  }
  return {.kind = DocumentIndex::Kind::kEnds, .path = path};
}

void visit_ends(const DocumentIndex& index, std::int64_t tokens,
                FunctionRef<void(std::int64_t end)> visit) {
  if (index.kind == DocumentIndex::Kind::kMegatron) return visit_megatron_ends(index.path, visit);
  if (index.kind != DocumentIndex::Kind::kEnds) return visit(tokens);
  const ReadableFile file(index.path);
  const std::uint64_t count = size_of_file(index.path) / sizeof(std::uint64_t);
  std::array<std::uint64_t, 512> ends;
  std::uint64_t before = 0;
  for (std::uint64_t first = 0; first < count; first += ends.size()) {
    const auto part = std::span(ends).first(std::min<std::uint64_t>(ends.size(), count - first));
    file.read(first * sizeof(std::uint64_t), std::as_writable_bytes(part));
    for (const std::uint64_t end : part) {
      if (end < before || end > static_cast<std::uint64_t>(tokens)) {
        throw CorruptData(fmt::format("{}: a document ends at token {}, after a document that ends "
                                      "at {}, of {} tokens",
                                      index.path, end, before, tokens),
                          kMakeIndexAgain);
      }
      visit(static_cast<std::int64_t>(end));
      before = end;
    }
  }
}

}  // namespace terrace
