#include "tests/sim/planted_bug.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/step/hazards.h"
#include "runtime/step/verify.h"

namespace terrace {
namespace {

bool overlaps(const Program& program, const Access& a, const Access& b) {
  const Buffer& first = program.buffers.at(a.buffer);
  const Buffer& second = program.buffers.at(b.buffer);
  if (first.tier != second.tier || first.tier == Tier::kNvme) return false;
  const std::size_t a_begin = first.offset + a.offset;
  const std::size_t b_begin = second.offset + b.offset;
  return a_begin < b_begin + b.size_bytes && b_begin < a_begin + a.size_bytes;
}

// Returns whether `later` writes to the space of another buffer that `earlier` reads.
bool reuses_space(const Program& program, const Op& earlier, const Op& later) {
  return std::ranges::any_of(earlier.reads, [&](const Access& read) {
    return std::ranges::any_of(later.writes, [&](const Access& write) {
      return read.buffer != write.buffer && overlaps(program, read, write);
    });
  });
}

bool reads_what_was_written(const Op& earlier, const Op& later) {
  return earlier.lane == Lane::kWrite && later.lane == Lane::kRead &&
         earlier.writes.front().buffer == later.reads.front().buffer;
}

// Sets the scalars of a step before the last update that the preceding step has left, as a schedule
// once did.
bool set_scalars_too_early(Program& program) {
  const auto scalars = std::ranges::find(program.ops, OpKind::kStepScalars, &Op::kind);
  const auto update = std::find_if(program.ops.begin(), scalars, [](const Op& op) {
    return op.kind == OpKind::kUpdate && op.is_deferred();
  });
  if (scalars == program.ops.end() || update == scalars) return false;
  std::rotate(update, scalars, scalars + 1);
  add_edges(program);
  return true;
}

class PlantedStore final : public BlockStore {
 public:
  PlantedStore(PlantedBug bug, std::uint64_t dice, std::unique_ptr<BlockStore> upstream)
      : bug_(bug), victim_(static_cast<std::int64_t>(dice % 120)), upstream_(std::move(upstream)) {}

  ExtentId create_extent(std::size_t size_bytes) override {
    return upstream_->create_extent(size_bytes);
  }
  void prepare() override { upstream_->prepare(); }
  void register_memory(std::span<std::byte> memory) override { upstream_->register_memory(memory); }
  void submit(const IoRequest& request) override {
    const bool writes = request.direction == IoRequest::Direction::kWrite;
    const bool counts = bug_ != PlantedBug::kLostWriteBack || writes;
    if (counts) ++requests_;
    const bool is_victim = counts && requests_ == victim_ + 1;
    if (bug_ == PlantedBug::kSwallowedFailure) return upstream_->submit(swallowed(request));
    if (!is_victim) return upstream_->submit(request);
    if (bug_ == PlantedBug::kLostWriteBack) return request.completion->done({});
    IoRequest silent = request;
    silent.completion = &nobody_;
    upstream_->submit(silent);
  }
  void set_zero(ExtentId extent, std::size_t offset, std::size_t size_bytes) override {
    upstream_->set_zero(extent, offset, size_bytes);
  }
  void take_checksums(ExtentId extent, std::size_t offset,
                      std::span<const std::byte> bytes) override {
    upstream_->take_checksums(extent, offset, bytes);
  }
  IoOutcome compare_checksums(ExtentId extent, std::size_t offset,
                              std::span<const std::byte> bytes) const override {
    return upstream_->compare_checksums(extent, offset, bytes);
  }
  void drain() override { upstream_->drain(); }
  std::size_t alignment() const override { return upstream_->alignment(); }
  std::size_t block_bytes() const override { return upstream_->block_bytes(); }
  std::size_t used_bytes() const override { return upstream_->used_bytes(); }
  std::vector<StorePath> paths() const override { return upstream_->paths(); }

 private:
  class Nobody final : public IoCompletion {
   public:
    void done(const IoOutcome& /*outcome*/) noexcept override {}
  };
  class Optimist final : public IoCompletion {
   public:
    explicit Optimist(IoCompletion* told) : told_(told) {}
    void done(const IoOutcome& /*outcome*/) noexcept override { told_->done({}); }

   private:
    IoCompletion* told_;
  };

  IoRequest swallowed(const IoRequest& request) {
    optimists_.push_back(std::make_unique<Optimist>(request.completion));
    IoRequest changed = request;
    changed.completion = optimists_.back().get();
    return changed;
  }

  const PlantedBug bug_;
  const std::int64_t victim_;  // the number of requests before it
  std::int64_t requests_ = 0;
  Nobody nobody_;
  std::vector<std::unique_ptr<Optimist>> optimists_;
  std::unique_ptr<BlockStore> upstream_;
};

class UnsyncedFile final : public OpenFile {
 public:
  explicit UnsyncedFile(std::unique_ptr<OpenFile> upstream) : upstream_(std::move(upstream)) {}
  std::int64_t append(std::span<const std::byte> bytes) override {
    return upstream_->append(bytes);
  }
  std::int64_t read_at(std::span<std::byte> out, std::uint64_t offset) override {
    return upstream_->read_at(out, offset);
  }
  std::int64_t size() override { return upstream_->size(); }
  int sync() override { return 0; }
  int close() override { return upstream_->close(); }

 private:
  std::unique_ptr<OpenFile> upstream_;
};

class PlantedFiles final : public FileSystem {
 public:
  PlantedFiles(PlantedBug bug, FileSystem& upstream) : bug_(bug), upstream_(upstream) {}

  Opened create(const std::string& path) override {
    Opened opened = upstream_.create(path);
    const bool is_victim =
        bug_ == PlantedBug::kUnsyncedManifest && path.find("manifest.json") != std::string::npos;
    if (is_victim && opened.file != nullptr) {
      opened.file = std::make_unique<UnsyncedFile>(std::move(opened.file));
    }
    return opened;
  }
  Opened open(const std::string& path) override { return upstream_.open(path); }
  int make_directory(const std::string& path) override { return upstream_.make_directory(path); }
  int rename(const std::string& from, const std::string& to) override {
    return upstream_.rename(from, to);
  }
  int remove(const std::string& path) override { return upstream_.remove(path); }
  int sync_directory(const std::string& path) override {
    const bool is_victim =
        bug_ == PlantedBug::kUnsyncedDirectory && path.find("checkpoint-") == std::string::npos;
    return is_victim ? 0 : upstream_.sync_directory(path);
  }
  bool exists(const std::string& path) override { return upstream_.exists(path); }
  std::vector<std::string> list(const std::string& directory) override {
    return upstream_.list(directory);
  }
  std::optional<std::uint64_t> free_bytes(const std::string& directory) override {
    return upstream_.free_bytes(directory);
  }

 private:
  const PlantedBug bug_;
  FileSystem& upstream_;
};

}  // namespace

std::string_view name_of(PlantedBug bug) {
  switch (bug) {
    case PlantedBug::kNone:
      return "none";
    case PlantedBug::kLostWriteBack:
      return "lost write-back";
    case PlantedBug::kMissingReuseEdge:
      return "missing reuse edge";
    case PlantedBug::kStaleExtent:
      return "stale extent";
    case PlantedBug::kScalarsOfNextStep:
      return "scalars of next step";
    case PlantedBug::kDroppedCompletion:
      return "dropped completion";
    case PlantedBug::kUnsyncedManifest:
      return "unsynced manifest";
    case PlantedBug::kUnsyncedDirectory:
      return "unsynced directory";
    case PlantedBug::kUncheckedSum:
      return "unchecked sum";
    case PlantedBug::kSwallowedFailure:
      return "swallowed failure";
  }
  return "";
}

bool plant_in_program(PlantedBug bug, std::uint64_t dice, Program& program) {
  if (bug == PlantedBug::kScalarsOfNextStep) {
    return set_scalars_too_early(program) && !verify(program, 1).empty();
  }
  if (bug != PlantedBug::kMissingReuseEdge && bug != PlantedBug::kStaleExtent) return false;
  std::vector<std::pair<std::size_t, std::size_t>> edges;  // op, and index in its list
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& later = program.ops[i];
    for (std::size_t e = 0; e < later.after.size(); ++e) {
      const Op& earlier = program.ops[later.after[e].op];
      const bool is_kind = bug == PlantedBug::kStaleExtent ? reads_what_was_written(earlier, later)
                                                           : reuses_space(program, earlier, later);
      if (is_kind) edges.emplace_back(i, e);
    }
  }
  // Many edges are implied by others, so several are tried.
  constexpr std::size_t kTries = 12;
  for (std::size_t t = 0; t < std::min(kTries, edges.size()); ++t) {
    const auto [op, edge] = edges[(dice + t * 7919) % edges.size()];
    std::vector<Dependency>& after = program.ops[op].after;
    const Dependency removed = after[edge];
    after.erase(after.begin() + static_cast<std::ptrdiff_t>(edge));
    if (!verify(program, 1).empty()) return true;
    after.insert(after.begin() + static_cast<std::ptrdiff_t>(edge), removed);
  }
  return false;
}

std::unique_ptr<BlockStore> plant_in_store(PlantedBug bug, std::uint64_t dice,
                                           std::unique_ptr<BlockStore> store) {
  const bool is_here = bug == PlantedBug::kLostWriteBack || bug == PlantedBug::kDroppedCompletion ||
                       bug == PlantedBug::kSwallowedFailure;
  if (!is_here) return store;
  return std::make_unique<PlantedStore>(bug, dice, std::move(store));
}

std::unique_ptr<FileSystem> plant_in_files(PlantedBug bug, FileSystem& files) {
  return std::make_unique<PlantedFiles>(bug, files);
}

}  // namespace terrace
