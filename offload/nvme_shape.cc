#include "offload/nvme_shape.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "offload/drive_probe.h"
#include "offload/drive_record.h"
#include "offload/space_check.h"

namespace terrace {
namespace {

// The number of pieces that may be in flight in place of a block, where requests are smaller than
// one.
constexpr int kPiecesOfABlock = 8;

// Measures the drive below a device of the files, using its first directory.
class DriveMeasurement {
 public:
  DriveMeasurement(const NvmeStoreOptions& options, SlotFiles& files, std::size_t device, Log& log)
      : options_(options),
        files_(files),
        device_(device),
        stripe_(files.device(device).stripes.front()),
        directory_(files.directory(stripe_)),
        log_(log) {}

  std::optional<DriveFacts> facts() {
    if (!files_.file(stripe_).direct()) return refuse("its I/O goes through the page cache");
    std::string remark;
    const std::string engine = files_.make_engine(device_, {}, remark)->facts().name;
    DriveRecord record(options_.probe.record_directory.value_or(user_cache_directory()),
                       drive_record_key(directory_.path, engine));
    if (const std::optional<DriveFacts> known = record.facts()) {
      tell(*known, fmt::format("from {}; remove that file to measure again", record.path()));
      return known;
    }
    const std::optional<DriveFacts> measured = measure();
    if (!measured) return measured;
    const bool kept = record.keep(*measured);
    tell(*measured, kept ? fmt::format("measured now and kept in {}", record.path())
                         : "measured now, but the result cannot be stored");
    return measured;
  }

 private:
  std::optional<DriveFacts> refuse(const std::string& why) {
    log_.info(fmt::format("nvme: {}: the drive was not measured: {}", directory_.path, why));
    return std::nullopt;
  }

  void tell(const DriveFacts& facts, const std::string& source) {
    log_.info(fmt::format("nvme: {}: blocks of {}, {} in flight; read {}, write {} ({})",
                          directory_.path, format_size(facts.shape.block_bytes), facts.shape.depth,
                          format_rate(facts.read_gb_per_s * 1e9),
                          format_rate(facts.write_gb_per_s * 1e9), source));
  }

  std::optional<DriveFacts> measure() {
    std::uint64_t bytes = options_.probe.write_bytes;
    if (directory_.budget_bytes) bytes = std::min<std::uint64_t>(bytes, *directory_.budget_bytes);
    bytes = bytes / kProbeBytesMin * kProbeBytesMin;
    if (bytes == 0) return refuse("its budget is too small");
    const SpaceNeed need = {.directory = directory_.path, .need_bytes = bytes, .budget_bytes = {}};
    try {
      check_space(std::span(&need, 1));
    } catch (const OutOfMemory& error) {
      return refuse(error.what());
    }
    DirectFile& file = files_.file(stripe_);
    std::optional<DriveFacts> facts;
    if (file.preallocate(bytes) == 0) {
      facts = probe_drive({.make_engine =
                               [this](int depth) {
                                 std::string remark;
                                 return files_.make_engine(device_, {.pieces_max = depth}, remark);
                               },
                           .file_bytes = bytes});
    }
    file.clear();
    return facts ? facts : refuse("a transfer failed");
  }

  const NvmeStoreOptions& options_;
  SlotFiles& files_;
  const std::size_t device_;
  const std::size_t stripe_;
  const NvmeDirectory& directory_;
  Log& log_;
};

// Returns how much of the directory can be used, less a few blocks that a stripe may be ahead.
std::uint64_t room_of(const NvmeDirectory& directory, std::size_t sharing) {
  constexpr std::uint64_t kSlack = 64 * kMiB;
  struct statvfs space = {};
  if (::statvfs(directory.path.c_str(), &space) != 0) return 0;
  std::uint64_t room = std::uint64_t{space.f_bavail} * space.f_frsize / sharing;
  if (directory.budget_bytes) room = std::min<std::uint64_t>(room, *directory.budget_bytes);
  return room - std::min(room, kSlack);
}

// Returns the rate for an equal number of bytes read and written.
double both_ways(const DriveFacts& facts) {
  return 2 / (1 / facts.read_gb_per_s + 1 / facts.write_gb_per_s);
}

}  // namespace

NvmeShape nvme_shape(const NvmeStoreOptions& options, SlotFiles& files, Log& log) {
  const DriveShape usual;
  const bool worth_it = options.expected_bytes >= options.probe.from_bytes;
  std::vector<DriveFacts> drives(files.device_count());
  std::vector<StripeRoom> rooms(files.count());
  std::size_t block_bytes = 0;
  for (std::size_t device = 0; device < drives.size(); ++device) {
    const std::vector<std::size_t>& stripes = files.device(device).stripes;
    std::optional<DriveFacts> facts;
    if (worth_it) facts = DriveMeasurement(options, files, device, log).facts();
    drives[device] = facts.value_or(DriveFacts{.shape = usual});
    block_bytes = std::max(block_bytes, drives[device].shape.block_bytes);
    for (const std::size_t stripe : stripes) {
      rooms[stripe].room_bytes = room_of(files.directory(stripe), stripes.size());
      if (facts) rooms[stripe].gb_per_s = both_ways(*facts) / static_cast<double>(stripes.size());
    }
  }
  NvmeShape shape = {.block_bytes = block_bytes,
                     .depths = {},
                     .shares = stripe_shares(rooms, options.expected_bytes),
                     .in_flight = {}};
  // All drives use one block size, and each has as many bytes in flight as it does best with.
  for (const DriveFacts& drive : drives) {
    const std::size_t bytes = drive.shape.block_bytes * static_cast<std::size_t>(drive.shape.depth);
    const auto blocks = static_cast<int>(divide_up(bytes, block_bytes));
    shape.depths.push_back(options.queue_depth.value_or(blocks));
    shape.in_flight.push_back(
        options.queue_depth ? InFlight{.pieces_max = *options.queue_depth}
                            : InFlight{.pieces_max = blocks * kPiecesOfABlock, .bytes_max = bytes});
  }
  return shape;
}

}  // namespace terrace
