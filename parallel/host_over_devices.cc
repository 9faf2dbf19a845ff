#include "parallel/host_over_devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/error.h"
#include "base/function_ref.h"
#include "memory/host/host_memory.h"
#include "memory/stream_call.h"
#include "parallel/rank_order.h"
#include "parallel/wire_call.h"

namespace terrace {
namespace {

// The size of each of the two halves of device memory: one half for the data that a rank sends at a
// time, one for the data that it receives.
constexpr std::size_t kHalfBytes = 4 * kMiB;

// Bytes of a call that belong to one rank.
struct Part {
  std::size_t begin = 0;
  std::size_t size = 0;
};

class HostOverDevices final : public Communicator {
 public:
  HostOverDevices(std::unique_ptr<Communicator> devices, Device& device)
      : Communicator(devices->name(), devices->rank(), devices->size()),
        devices_(std::move(devices)),
        device_(device),
        piece_bytes_(kHalfBytes / static_cast<std::size_t>(size()) / kCacheLineBytes *
                     kCacheLineBytes),
        memory_(device.allocate(2 * kHalfBytes)),
        host_(kHalfBytes, HostMemoryOptions{}),
        stream_(device.create_stream("host memory of ranks")),
        parts_(static_cast<std::size_t>(size())),
        sources_(static_cast<std::size_t>(size())),
        calls_(static_cast<std::size_t>(size())) {
    TERRACE_CHECK_LT(sizeof(WireCall), piece_bytes_);
  }

  void abort(const std::string& reason) override { devices_->abort(reason); }
  std::optional<std::string> abort_reason() override { return devices_->abort_reason(); }

 private:
  using Step = FunctionRef<void()>;

  void run(const CollectiveCall& call, NativeStream /*stream*/) override {
    try {
      compare(call);
      carry_out(call);
    } catch (const CommError& error) {
      throw CommError(
          fmt::format("{} on communicator '{}' (rank {} of {}) was aborted: {}", describe(call),
                      name(), rank(), size(), abort_reason().value_or(error.what())),
          "");
    }
  }

  std::unique_ptr<Communicator> run_split(int color, int key, const std::string& name) override {
    return std::make_unique<HostOverDevices>(devices_->split(color, key, name), device_);
  }

  void carry_out(const CollectiveCall& call) {
    if (call.elements == 0) return;
    switch (call.kind) {
      case CollectiveKind::kAllReduce:
        return all_reduce(call);
      case CollectiveKind::kReduceScatter:
        set_equal_parts(call);
        return for_pieces(
            [&](std::size_t at, std::size_t n) { add_own_part(call, at, n, call.target); });
      case CollectiveKind::kAllGather:
        set_equal_parts(call);
        return for_pieces(
            [&](std::size_t at, std::size_t n) { gather(call.source, call.target, at, n); });
      case CollectiveKind::kAllToAll:
        set_equal_parts(call);
        return for_pieces([&](std::size_t at, std::size_t n) { all_to_all(call, at, n); });
      case CollectiveKind::kBroadcast:
      case CollectiveKind::kSend:
      case CollectiveKind::kRecv:
        return move_whole(call);
      case CollectiveKind::kSplit:
        break;
    }
    TERRACE_CHECK(false);
  }

  // Compares the calls of all ranks. In a pair, the receiver compares its call with the sender's.
  void compare(const CollectiveCall& call);
  void refuse(const std::string& different) {
    if (different.empty()) return;
    abort(fmt::format("communicator '{}': {}", name(), different));
    throw_if_aborted();
  }

  void set_equal_parts(const CollectiveCall& call) {
    const std::size_t bytes = call.size_bytes() / parts_.size();
    for (std::size_t r = 0; r < parts_.size(); ++r) parts_[r] = {r * bytes, bytes};
  }
  const Part& own() const { return parts_[static_cast<std::size_t>(rank())]; }
  // Returns how many bytes of a rank's part are left from `at` on, at most `n`.
  static std::size_t rest(const Part& part, std::size_t at, std::size_t n) {
    return at < part.size ? std::min(n, part.size - at) : 0;
  }
  void for_pieces(FunctionRef<void(std::size_t at, std::size_t n)> each) {
    const auto longest = std::ranges::max_element(parts_, {}, &Part::size)->size;
    for (std::size_t at = 0; at < longest; at += piece_bytes_) {
      each(at, std::min(piece_bytes_, longest - at));
    }
  }

  void all_reduce(const CollectiveCall& call);
  // Both work on the bytes [at, at + n) of every rank's part. add_own_part() adds the bytes of this
  // rank's part over all ranks, and writes them to its part of the sum, `target`; gather() collects
  // the bytes of all parts.
  void add_own_part(const CollectiveCall& call, std::size_t at, std::size_t n, std::byte* target);
  void gather(const std::byte* own_part, std::byte* target, std::size_t at, std::size_t n);
  void all_to_all(const CollectiveCall& call, std::size_t at, std::size_t n);
  void move_whole(const CollectiveCall& call);

  // Runs `put` (copies to the device), `call` (a call between devices) and `take` (copies from the
  // device), and waits for all. It waits for `call` before it copies from the device: a copy into
  // pageable memory would wait inside the driver, and could hold up other threads of this process
  // whose work the other ranks wait for.
  void exchange(Step put, FunctionRef<void(NativeStream)> call, Step take) {
    throw_if_aborted();
    put();
    StreamCall task(call);
    stream_->run(task);
    stream_->synchronize();
    take();
    stream_->synchronize();
    task.rethrow();
    throw_if_aborted();
  }
  void upload(std::size_t to, const std::byte* from, std::size_t bytes) {
    stream_->copy(out(to + bytes).subspan(to), {from, bytes});
  }
  void download(std::byte* to, std::size_t from, std::size_t bytes) {
    stream_->copy({to, bytes}, in(from + bytes).subspan(from));
  }
  std::span<std::byte> out(std::size_t bytes) const { return memory_->bytes().first(bytes); }
  std::span<std::byte> in(std::size_t bytes) const {
    return memory_->bytes().subspan(kHalfBytes, bytes);
  }

  const std::unique_ptr<Communicator> devices_;
  Device& device_;
  const std::size_t piece_bytes_;
  const std::unique_ptr<DeviceMemory> memory_;
  HostMemory host_;  // received data, to be added
  const std::unique_ptr<Stream> stream_;
  // For the call that is being carried out, indexed by rank.
  std::vector<Part> parts_;
  std::vector<const std::byte*> sources_;
  std::vector<WireCall> calls_;
};

void HostOverDevices::compare(const CollectiveCall& call) {
  constexpr std::size_t kBytes = sizeof(WireCall);
  const WireCall mine = to_wire(call);
  const auto* const own_bytes = reinterpret_cast<const std::byte*>(&mine);
  auto* const all_bytes = reinterpret_cast<std::byte*>(calls_.data());
  if (call.kind == CollectiveKind::kSend) {
    return exchange([&] { upload(0, own_bytes, kBytes); },
                    [&](NativeStream s) { devices_->send(view(out(kBytes)), call.peer, s); },
                    [] {});
  }
  if (call.kind == CollectiveKind::kRecv) {
    exchange([] {}, [&](NativeStream s) { devices_->recv(view(in(kBytes)), call.peer, s); },
             [&] { download(all_bytes, 0, kBytes); });
    return refuse(mismatch(from_wire(calls_.front()), call.peer, call, rank()));
  }
  const std::size_t all = kBytes * calls_.size();
  exchange([&] { upload(0, own_bytes, kBytes); },
           [&](NativeStream s) { devices_->all_gather(view(in(all)), view(out(kBytes)), s); },
           [&] { download(all_bytes, 0, all); });
  for (int other = 1; other < size(); ++other) {
    refuse(mismatch(from_wire(calls_.front()), 0,
                    from_wire(calls_[static_cast<std::size_t>(other)]), other));
  }
}

void HostOverDevices::all_reduce(const CollectiveCall& call) {
  const std::size_t width = size_of(call.dtype);
  for (int r = 0; r < size(); ++r) {
    const ElementRange part = all_reduce_part(call.elements, r, size());
    parts_[static_cast<std::size_t>(r)] = {part.begin * width, part.count * width};
  }
  for_pieces([&](std::size_t at, std::size_t n) {
    add_own_part(call, at, n, call.target + own().begin);
    gather(call.target + own().begin, call.target, at, n);
  });
}

void HostOverDevices::add_own_part(const CollectiveCall& call, std::size_t at, std::size_t n,
                                   std::byte* target) {
  const auto put_parts = [&] {
    for (std::size_t r = 0; r < parts_.size(); ++r) {
      upload(r * n, call.source + parts_[r].begin + at, rest(parts_[r], at, n));
    }
  };
  const std::size_t all = n * parts_.size();
  exchange(
      put_parts, [&](NativeStream s) { devices_->all_to_all(view(in(all)), view(out(all)), s); },
      [&] { download(host_.bytes().data(), 0, all); });
  for (std::size_t r = 0; r < sources_.size(); ++r) sources_[r] = host_.bytes().data() + r * n;
  const std::size_t elements = rest(own(), at, n) / size_of(call.dtype);
  if (elements == 0) return;
  std::byte* const sum = target + at;
  reduce_in_rank_order({&sum, 1}, sources_, elements, call.dtype, call.op);
}

void HostOverDevices::gather(const std::byte* own_part, std::byte* target, std::size_t at,
                             std::size_t n) {
  const auto take_parts = [&] {
    for (std::size_t r = 0; r < parts_.size(); ++r) {
      download(target + parts_[r].begin + at, r * n, rest(parts_[r], at, n));
    }
  };
  exchange(
      [&] { upload(0, own_part + at, rest(own(), at, n)); },
      [&](NativeStream s) { devices_->all_gather(view(in(n * parts_.size())), view(out(n)), s); },
      take_parts);
}

void HostOverDevices::all_to_all(const CollectiveCall& call, std::size_t at, std::size_t n) {
  const std::size_t all = n * parts_.size();
  const auto put_parts = [&] {
    for (std::size_t r = 0; r < parts_.size(); ++r) {
      upload(r * n, call.source + parts_[r].begin + at, n);
    }
  };
  const auto take_parts = [&] {
    for (std::size_t r = 0; r < parts_.size(); ++r) {
      download(call.target + parts_[r].begin + at, r * n, n);
    }
  };
  exchange(
      put_parts, [&](NativeStream s) { devices_->all_to_all(view(in(all)), view(out(all)), s); },
      take_parts);
}

void HostOverDevices::move_whole(const CollectiveCall& call) {
  const bool is_broadcast = call.kind == CollectiveKind::kBroadcast;
  const bool gives = call.kind == CollectiveKind::kSend || (is_broadcast && call.peer == rank());
  const std::size_t bytes = call.size_bytes();
  for (std::size_t at = 0; at < bytes; at += kHalfBytes) {
    const std::size_t n = std::min(kHalfBytes, bytes - at);
    const auto move = [&](NativeStream s) {
      if (is_broadcast) return devices_->broadcast(view(out(n)), call.peer, s);
      if (gives) return devices_->send(view(out(n)), call.peer, s);
      devices_->recv(view(out(n)), call.peer, s);
    };
    exchange(
        [&] {
          if (gives) upload(0, call.source + at, n);
        },
        move,
        [&] {
          if (!gives) stream_->copy({call.target + at, n}, out(n));
        });
  }
}

}  // namespace

std::unique_ptr<Communicator> make_host_communicator(std::unique_ptr<Communicator> devices,
                                                     Device& device) {
  return std::make_unique<HostOverDevices>(std::move(devices), device);
}

}  // namespace terrace
