#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "base/bytes.h"
#include "base/clock.h"
#include "bench/bench_list.h"
#include "bench/lane_copies.h"
#include "memory/cpu/cpu_device.h"
#include "memory/host/host_memory.h"
#include "memory/host/streaming_copy.h"

namespace terrace {
namespace {

using Target = std::span<std::byte>;
using Source = std::span<const std::byte>;

// Calls body(offset, size) for piece after piece.
template <typename Body>
void for_pieces(std::size_t total, Body body) {
  for (std::size_t at = 0; at < total; at += kGradientChunkBytes) {
    body(at, std::min(kGradientChunkBytes, total - at));
  }
}

// Both sides of the copies, larger than any cache, and the device's streams.
class CopyBench {
 public:
  explicit CopyBench(std::size_t bytes)
      : host_(bytes, HostMemoryOptions{}),
        device_(make_cpu_device(bytes)),
        on_device_(device_->allocate(bytes)),
        uploads_(device_->create_stream("upload")),
        downloads_(device_->create_stream("download")) {}

  double plain() {
    return rate(size(), [this] {
      for_pieces(size(), [this](std::size_t at, std::size_t bytes) {
        std::memcpy(device_bytes().data() + at, host_.bytes().data() + at, bytes);
      });
    });
  }

  double streaming() {
    return rate(size(), [this] { stream_all(device_bytes(), host_.bytes()); });
  }

  double upload() {
    return rate(size(), [this] {
      queue(*uploads_, device_bytes(), host_.bytes());
      uploads_->synchronize();
    });
  }

  double download() {
    return rate(size(), [this] {
      queue(*downloads_, host_.bytes(), device_bytes());
      downloads_->synchronize();
    });
  }

  // Copies one half of both sides each way, at the same time.
  double streaming_both_ways() {
    return rate(size(), [this] {
      std::thread other([this] { stream_all(lower(device_bytes()), lower(host_.bytes())); });
      stream_all(upper(host_.bytes()), upper(device_bytes()));
      other.join();
    });
  }

  double both_ways() {
    return rate(size(), [this] {
      queue(*uploads_, lower(device_bytes()), lower(host_.bytes()));
      queue(*downloads_, upper(host_.bytes()), upper(device_bytes()));
      uploads_->synchronize();
      downloads_->synchronize();
    });
  }

 private:
  std::size_t size() { return host_.bytes().size(); }
  Target device_bytes() { return on_device_->bytes(); }
  static Target lower(Target bytes) { return bytes.first(bytes.size() / 2); }
  static Target upper(Target bytes) { return bytes.last(bytes.size() / 2); }

  template <typename Body>
  double rate(std::size_t bytes, Body body) const {
    const std::int64_t begin = clock_.now_ns();
    body();
    return static_cast<double>(bytes) / static_cast<double>(clock_.now_ns() - begin);
  }

  static void stream_all(Target target, Source source) {
    for_pieces(target.size(), [&](std::size_t at, std::size_t bytes) {
      streaming_copy(target.subspan(at, bytes), source.subspan(at, bytes));
    });
  }

  static void queue(Stream& stream, Target target, Source source) {
    for_pieces(target.size(), [&](std::size_t at, std::size_t bytes) {
      stream.copy(target.subspan(at, bytes), source.subspan(at, bytes));
    });
  }

  SystemClock clock_;
  HostMemory host_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceMemory> on_device_;
  std::unique_ptr<Stream> uploads_;
  std::unique_ptr<Stream> downloads_;
};

enum Place : std::size_t { kPlain, kStreaming, kUpload, kDownload, kStreamingBoth, kBoth };

std::size_t side_bytes(const BenchOptions& options) {
  const std::size_t usual = options.small ? 8 * kMiB : kGiB;
  return round_up(options.bytes == 0 ? usual : options.bytes, 2 * kMiB);
}

void put_results(const std::vector<Samples>& samples, BenchRecord& record) {
  const bool streaming_wins = samples[kStreaming].median() >= samples[kPlain].median();
  const Samples& limit = samples[streaming_wins ? kStreaming : kPlain];
  const std::string limit_is =
      streaming_wins ? "a streaming copy, 1 thread" : "memcpy of the C library, 1 thread";
  const auto put = [&record](const char* name, const Samples& value, const Samples& best,
                             const std::string& best_is) {
    record.put({.name = name, .value = value, .limit = best, .limit_is = best_is});
  };
  put("memcpy", samples[kPlain], limit, limit_is);
  put("upload", samples[kUpload], limit, limit_is);
  put("download", samples[kDownload], limit, limit_is);
  put("upload_and_download", samples[kBoth], samples[kStreamingBoth],
      "a streaming copy in each direction, 2 threads");
}

}  // namespace

std::vector<std::string> names_of_copy(const BenchOptions& options) {
  if (options.device != nullptr) return names_of_device_copy();
  return {"memcpy", "upload", "download", "upload_and_download"};
}

// The cost, in copies of one side, of a round and of making both sides, where the first touch costs
// the most.
constexpr double kCopiesOfRound = 6;
constexpr double kCopiesToBegin = 8;

BenchCost cost_of_copy(const BenchOptions& options, const MachineSpeed& speed) {
  const auto bytes = static_cast<double>(side_bytes(options));
  const double copies = kCopiesOfRound * options.repetitions + kCopiesToBegin;
  return {.seconds = copies * bytes / speed.copy_bytes_per_s};
}

// Fits three rounds into half of the time; a side has at least one piece.
void fit_copy(BenchOptions& options, const MachineSpeed& speed) {
  const double copies = 3 * kCopiesOfRound + kCopiesToBegin;
  const double bytes = *options.time_limit_s / 2 * speed.copy_bytes_per_s / copies;
  const std::size_t least = std::min(side_bytes(options), kGradientChunkBytes);
  options.bytes = std::clamp(static_cast<std::size_t>(bytes), least, side_bytes(options));
}

void bench_copy(const BenchOptions& options, BenchRecord& record, Log& log) {
  if (options.device != nullptr) return bench_device_copy(options, record, log);
  record.expect(names_of_copy(options));
  const std::size_t bytes = side_bytes(options);
  log.info(fmt::format("bench copy: {} on each side, {} rounds", format_size(bytes),
                       options.repetitions));
  CopyBench bench(bytes);
  const std::vector<Measurement> measurements = {[&] { return bench.plain(); },
                                                 [&] { return bench.streaming(); },
                                                 [&] { return bench.upload(); },
                                                 [&] { return bench.download(); },
                                                 [&] { return bench.streaming_both_ways(); },
                                                 [&] { return bench.both_ways(); }};
  interleave(measurements, record.rounds(options.repetitions),
             [&](const std::vector<Samples>& samples) { put_results(samples, record); });
}

}  // namespace terrace
