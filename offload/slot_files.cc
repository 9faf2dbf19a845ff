#include "offload/slot_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "offload/drive_record.h"
#include "offload/posix_engine.h"
#include "offload/space_check.h"
#include "offload/uring/uring_engine.h"

namespace terrace {

namespace {

// An engine restricted to one of its files.
class FileOfEngine final : public IoEngine {
 public:
  FileOfEngine(IoEngine& engine, std::size_t file) : engine_(engine), file_(file) {}

  void submit(const Piece& piece) override {
    Piece named = piece;
    named.file = file_;
    engine_.submit(named);
  }
  void register_memory(std::span<std::byte> memory) override { engine_.register_memory(memory); }
  EngineFacts facts() const override { return engine_.facts(); }

 private:
  IoEngine& engine_;
  const std::size_t file_;
};

}  // namespace

SlotFiles::SlotFiles(const NvmeStoreOptions& options, Log& log)
    : engine_kind_(options.engine), named_(options.named_files) {
  for (const NvmeDirectory& directory : options.directories) add(directory, options.faults, log);
}

void SlotFiles::add(const NvmeDirectory& directory, SystemFaults* faults, Log& log) {
  Slot slot;
  slot.directory = directory;
  slot.job = std::make_unique<JobDirectory>(directory.path, log);
  slot.file = std::make_unique<DirectFile>(slot.job->slot_file(), faults);
  if (!named_) slot.job->remove();  // before anything in it is measured
  const std::string name = device_of(directory.path);
  const auto found = std::ranges::find(devices_, name, &Device::name);
  slot.device = static_cast<std::size_t>(found - devices_.begin());
  if (found == devices_.end()) devices_.emplace_back().name = name;
  devices_[slot.device].stripes.push_back(slots_.size());
  slots_.push_back(std::move(slot));
}

std::unique_ptr<IoEngine> SlotFiles::make_engine(std::size_t device, const InFlight& in_flight,
                                                 std::string& remark) const {
  const std::vector<std::size_t>& stripes = devices_[device].stripes;
  if (engine_kind_ != IoEngineKind::kPosix) {
    std::vector<const DirectFile*> files;
    for (const std::size_t stripe : stripes) files.push_back(slots_[stripe].file.get());
    try {
      return make_uring_engine(std::move(files), in_flight);
    } catch (const UringRefused& refused) {
      if (engine_kind_ == IoEngineKind::kIoUring) {
        throw ConfigError(
            fmt::format("io_uring was requested, but the system refuses it: {}", refused.what()),
            "choose the engine auto or posix, or allow io_uring (sysctl "
            "kernel.io_uring_disabled, the container's seccomp profile, ulimit -l)");
      }
      remark = fmt::format("io_uring is refused: {}", refused.what());
    }
  }
  std::vector<RawFile*> files;
  for (const std::size_t stripe : stripes) files.push_back(slots_[stripe].file.get());
  return std::make_unique<PosixEngine>(std::move(files), in_flight, "posix");
}

void SlotFiles::open(std::size_t device, int depth, const InFlight& in_flight) {
  Device& opened = devices_[device];
  opened.depth = depth;
  opened.engine = make_engine(device, in_flight, opened.remark);
  for (std::size_t file = 0; file < opened.stripes.size(); ++file) {
    slots_[opened.stripes[file]].way = std::make_unique<FileOfEngine>(*opened.engine, file);
  }
}

void SlotFiles::prepare(std::span<const std::uint64_t> sizes) {
  try {
    std::vector<SpaceNeed> needs;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const NvmeDirectory& directory = slots_[i].directory;
      needs.push_back({.directory = directory.path,
                       .need_bytes = sizes[i],
                       .budget_bytes = directory.budget_bytes});
    }
    check_space(needs);
    for (std::size_t i = 0; i < slots_.size(); ++i) preallocate(slots_[i], sizes[i]);
  } catch (...) {
    for (Slot& slot : slots_) slot.job->remove();
    throw;
  }
}

void SlotFiles::preallocate(Slot& slot, std::uint64_t size) {
  const int error_number = slot.file->preallocate(size);
  if (error_number == 0) return;
  if (error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG) {
    throw OutOfMemory(
        fmt::format("directory {}: a file of {} does not fit: {}", slot.directory.path,
                    format_size(size), std::strerror(error_number)),
        "free space, or name a directory on a larger drive");
  }
  throw IoError({.operation = "fallocate",
                 .path = slot.file->path(),
                 .offset = 0,
                 .size = size,
                 .error_number = error_number});
}

const std::string& SlotFiles::file_name(std::size_t stripe) const {
  return slots_[stripe].file->path();
}

std::size_t SlotFiles::spacing() const {
  std::size_t spacing = kTransferAlignment;
  for (const Slot& slot : slots_) spacing = std::max(spacing, slot.file->spacing());
  return spacing;
}

std::vector<StorePath> SlotFiles::paths() const {
  std::vector<StorePath> paths;
  for (const Slot& slot : slots_) {
    const EngineFacts facts = slot.way->facts();
    StorePath path{.directory = slot.directory.path,
                   .engine = facts.name,
                   .direct_io = slot.file->direct(),
                   .registered_buffers = facts.registered_buffers,
                   .remark = devices_[slot.device].remark,
                   .depth = devices_[slot.device].depth};
    for (const std::string& remark : {slot.file->remark(), facts.remark}) {
      if (!path.remark.empty() && !remark.empty()) path.remark += "; ";
      path.remark += remark;
    }
    paths.push_back(std::move(path));
  }
  return paths;
}

}  // namespace terrace
