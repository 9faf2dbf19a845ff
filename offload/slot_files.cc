#include "offload/slot_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "offload/posix_engine.h"
#include "offload/space_check.h"
#include "offload/uring/uring_engine.h"

namespace terrace {

SlotFiles::SlotFiles(const NvmeStoreOptions& options, Log& log) {
  for (const NvmeDirectory& directory : options.directories) {
    Slot slot;
    slot.directory = directory;
    slot.job = std::make_unique<JobDirectory>(directory.path, log);
    slot.file = std::make_unique<DirectFile>(slot.job->slot_file(), options.faults);
    make_engine(options, slot);
    slots_.push_back(std::move(slot));
  }
}

void SlotFiles::make_engine(const NvmeStoreOptions& options, Slot& slot) {
  if (options.engine != IoEngineKind::kPosix) {
    try {
      slot.engine = make_uring_engine(*slot.file, options.queue_depth);
      return;
    } catch (const UringRefused& refused) {
      if (options.engine == IoEngineKind::kIoUring) {
        throw ConfigError(fmt::format("io_uring was asked for and is refused: {}", refused.what()),
                          "choose the engine auto or posix, or allow io_uring (sysctl "
                          "kernel.io_uring_disabled, the container's seccomp profile, ulimit -l)");
      }
      slot.engine_remark = fmt::format("io_uring is refused: {}", refused.what());
    }
  }
  slot.engine = std::make_unique<PosixEngine>(*slot.file, options.queue_depth, "posix");
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

std::size_t SlotFiles::alignment() const {
  std::size_t alignment = 1;
  for (const Slot& slot : slots_) alignment = std::max(alignment, slot.file->alignment());
  return alignment;
}

std::vector<StorePath> SlotFiles::paths() const {
  std::vector<StorePath> paths;
  for (const Slot& slot : slots_) {
    const EngineFacts facts = slot.engine->facts();
    StorePath path{.directory = slot.directory.path,
                   .engine = facts.name,
                   .direct_io = slot.file->direct(),
                   .registered_buffers = facts.registered_buffers,
                   .remark = slot.engine_remark};
    for (const std::string& remark : {slot.file->remark(), facts.remark}) {
      if (!path.remark.empty() && !remark.empty()) path.remark += "; ";
      path.remark += remark;
    }
    paths.push_back(std::move(path));
  }
  return paths;
}

}  // namespace terrace
