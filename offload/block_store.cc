#include "offload/block_store.h"

#include <fmt/format.h>

#include <cerrno>

namespace terrace {
namespace {

std::string remedy_for(int error_number) {
  if (error_number == ENOSPC || error_number == EDQUOT) return "free space in that directory";
  return "look for drive errors in the kernel log, or use another directory";
}

}  // namespace

void IoOutcome::throw_if_failed() const {
  if (kind == Kind::kFailed) throw IoError(where, remedy_for(where.error_number));
  if (kind == Kind::kCorrupt) {
    throw CorruptData(fmt::format("{} of {} at offset {}, {} bytes", where.operation, where.path,
                                  where.offset, where.size),
                      "the run cannot continue with these bytes: check the drive, and resume from "
                      "the last checkpoint");
  }
}

}  // namespace terrace
