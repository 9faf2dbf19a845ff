#include "runtime/train/resume.h"

#include <fmt/format.h>

#include <optional>

namespace terrace {

std::unique_ptr<Checkpoint> find_checkpoint(const std::string& resume, const std::string& run_dir) {
  if (resume == "none") return nullptr;
  if (resume != "auto") return std::make_unique<Checkpoint>(resume);
  const std::optional<std::string> latest = latest_checkpoint(run_dir);
  if (!latest.has_value()) return nullptr;
  try {
    return std::make_unique<Checkpoint>(*latest);
  } catch (const CorruptData& damage) {
    throw naming_earlier_checkpoint(damage, resume, run_dir);
  }
}

CorruptData naming_earlier_checkpoint(const CorruptData& damage, const std::string& resume,
                                      const std::string& run_dir) {
  if (resume != "auto") return damage;
  const std::optional<std::string> earlier = earlier_checkpoint(run_dir);
  return {damage.what(), earlier ? fmt::format("that would be --resume {}", *earlier)
                                 : fmt::format("{} has no other checkpoint", run_dir)};
}

}  // namespace terrace
