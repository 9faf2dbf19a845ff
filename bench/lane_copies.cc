#include "bench/lane_copies.h"

#include <algorithm>
#include <string_view>

#include "base/bytes.h"

namespace terrace {
namespace {

std::size_t pieces_of(std::size_t bytes) {
  return (bytes + kGradientChunkBytes - 1) / kGradientChunkBytes;
}

}  // namespace

LaneCopies::LaneCopies(ComputeDevice& device, std::size_t size_bytes,
                       const std::vector<int>& numa_nodes)
    : host_memory_(size_bytes, HostMemoryOptions{.numa_nodes = numa_nodes}),
      locked_(device.lock(host_memory_.bytes())),
      device_memory_(device.device().allocate(size_bytes)),
      host_(host_memory_.bytes().first(size_bytes)),
      device_(device_memory_->bytes()),
      start_(device.device().create_event()) {
  const auto make = [&](std::string_view name) {
    Way way{.stream = device.device().create_stream(name), .pieces = {}};
    for (std::size_t i = 0; i < pieces_of(size_bytes); ++i) {
      way.pieces.push_back(device.device().create_event());
    }
    return way;
  };
  upload_ = make("measured upload");
  download_ = make("measured download");
}

CopySeconds LaneCopies::run(CopyWays ways) {
  const std::size_t all = host_.size();
  const std::size_t half = all / 2;
  upload_.stream->record(*start_);
  download_.stream->wait(*start_);
  CopySeconds seconds;
  switch (ways) {
    case CopyWays::kUpload:
      copy(upload_, device_, host_);
      seconds.upload = seconds_since_start(upload_, all);
      break;
    case CopyWays::kDownload:
      copy(download_, host_, device_);
      seconds.download = seconds_since_start(download_, all);
      break;
    case CopyWays::kBoth:
      copy(upload_, device_.first(half), host_.first(half));
      copy(download_, host_.last(half), device_.last(half));
      seconds.upload = seconds_since_start(upload_, half);
      seconds.download = seconds_since_start(download_, half);
      break;
    case CopyWays::kLocal:
      copy(upload_, device_.last(half), device_.first(half));
      seconds.local = seconds_since_start(upload_, half);
      break;
  }
  return seconds;
}

void LaneCopies::copy(Way& way, std::span<std::byte> target, std::span<const std::byte> source) {
  for (std::size_t at = 0; at < source.size(); at += kGradientChunkBytes) {
    const std::size_t size = std::min(kGradientChunkBytes, source.size() - at);
    way.stream->copy(target.subspan(at, size), source.subspan(at, size));
    way.stream->record(*way.pieces[at / kGradientChunkBytes]);
  }
}

double LaneCopies::seconds_since_start(const Way& way, std::size_t bytes) const {
  Event& last = *way.pieces[pieces_of(bytes) - 1];
  last.wait();
  start_->wait();
  return static_cast<double>(last.reached_ns() - start_->reached_ns()) * 1e-9;
}

}  // namespace terrace
