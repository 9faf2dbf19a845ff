#include "tests/conformance/device_memory_conformance.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "base/half.h"
#include "memory/stream_call.h"

namespace terrace {
namespace {

constexpr std::size_t kCounts[] = {1, 63, 1025, 20'011};

template <typename T>
void append(std::vector<std::byte>& bytes, const T& value) {
  const auto of_value = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), of_value.begin(), of_value.end());
}

// Returns numbers that differ on every rank.
std::vector<std::byte> numbers(DType dtype, std::size_t count, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank));
  std::uniform_int_distribution<int> whole(-1000, 1000);
  std::uniform_real_distribution<float> broken(-8, 8);
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < count; ++i) {
    switch (dtype) {
      case DType::kF32:
        append(bytes, static_cast<float>(whole(random)));
        break;
      case DType::kF64:
        append(bytes, static_cast<double>(whole(random)));
        break;
      case DType::kBF16:
        append(bytes, to_bf16_nearest_even(broken(random)));
        break;
      case DType::kF16:
        append(bytes, to_fp16_nearest_even(broken(random)));
        break;
      case DType::kI32:
        append(bytes, whole(random));
        break;
      case DType::kI16:
        append(bytes, static_cast<std::int16_t>(whole(random)));
        break;
      case DType::kU8:
        append(bytes, static_cast<std::uint8_t>(whole(random)));
        break;
    }
  }
  return bytes;
}

// The views that a call may read and write. `whole` and `other` hold, for each rank, as many
// elements as `part`.
struct Views {
  TensorView whole, other, part;
};

using Call = void (*)(Communicator&, const Views&, NativeStream);

struct Buffers {
  DType dtype = DType::kF32;
  std::size_t count = 0;  // of `part`
  std::size_t ranks = 0;

  std::size_t elements() const { return (2 * ranks + 1) * count; }
  Views of(std::span<std::byte> bytes) const {
    const std::size_t whole = ranks * count * size_of(dtype);
    const auto all = static_cast<std::int64_t>(ranks * count);
    return {view(bytes.data(), dtype, all), view(bytes.data() + whole, dtype, all),
            view(bytes.data() + 2 * whole, dtype, static_cast<std::int64_t>(count))};
  }
};

void expect_equal(const char* name, const BothMemories& both, DType dtype, std::size_t count,
                  Call call) {
  const Buffers buffers = {dtype, count, static_cast<std::size_t>(both.host.size())};
  std::vector<std::byte> in_host = numbers(dtype, buffers.elements(), both.host.rank());
  const std::vector<std::byte> before = in_host;
  std::vector<std::byte> from_device(in_host.size());
  const std::unique_ptr<DeviceMemory> memory = both.device.allocate(in_host.size());
  const std::unique_ptr<Stream> stream = both.device.create_stream("calls");
  stream->copy(memory->bytes(), in_host);
  const auto call_device = [&](NativeStream native) {
    call(both.devices, buffers.of(memory->bytes()), native);
  };
  StreamCall work(call_device);
  stream->run(work);
  stream->copy(from_device, memory->bytes());
  stream->synchronize();
  work.rethrow();
  both.devices.throw_if_aborted();
  call(both.host, buffers.of(in_host), {});
  EXPECT_TRUE(from_device == in_host) << name << " of " << count << " " << name_of(dtype);
  EXPECT_TRUE(both.host.size() == 1 || in_host != before) << name << " did nothing";
}

void all_reduce(Communicator& ranks, const Views& views, NativeStream stream) {
  ranks.all_reduce(views.whole, ReduceOp::kSum, stream);
}
// Reduces a number of elements that the ranks cannot divide evenly.
void all_reduce_part(Communicator& ranks, const Views& views, NativeStream stream) {
  ranks.all_reduce(views.part, ReduceOp::kSum, stream);
}
void reduce_scatter(Communicator& ranks, const Views& views, NativeStream stream) {
  ranks.reduce_scatter(views.part, views.whole, ReduceOp::kSum, stream);
}
// Reduces in place, and gathers the result back.
void to_own_part_and_back(Communicator& ranks, const Views& views, NativeStream stream) {
  const auto bytes = static_cast<std::size_t>(views.part.elements()) * size_of(views.part.dtype);
  const TensorView own = view(views.whole.data + static_cast<std::size_t>(ranks.rank()) * bytes,
                              views.part.dtype, views.part.elements());
  ranks.reduce_scatter(own, views.whole, ReduceOp::kSum, stream);
  ranks.all_gather(views.whole, own, stream);
}
void all_gather(Communicator& ranks, const Views& views, NativeStream stream) {
  ranks.all_gather(views.whole, views.part, stream);
}
void all_to_all(Communicator& ranks, const Views& views, NativeStream stream) {
  ranks.all_to_all(views.other, views.whole, stream);
}
void broadcast_from_both_ends(Communicator& ranks, const Views& views, NativeStream stream) {
  ranks.broadcast(views.whole, 0, stream);
  ranks.broadcast(views.other, ranks.size() - 1, stream);
}
void send_round_a_ring(Communicator& ranks, const Views& views, NativeStream stream) {
  const int next = (ranks.rank() + 1) % ranks.size();
  const int previous = (ranks.rank() + ranks.size() - 1) % ranks.size();
  if (ranks.rank() == 0) ranks.send(views.whole, next, stream);
  ranks.recv(views.other, previous, stream);
  if (ranks.rank() != 0) ranks.send(views.whole, next, stream);
}

}  // namespace

void expect_sums_of_host(const BothMemories& both) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32}) {
    for (const std::size_t count : kCounts) {
      expect_equal("all_reduce", both, dtype, count, all_reduce);
      expect_equal("all_reduce of a part", both, dtype, count, all_reduce_part);
      expect_equal("reduce_scatter", both, dtype, count, reduce_scatter);
      expect_equal("reduce_scatter in place", both, dtype, count, to_own_part_and_back);
    }
  }
}

void expect_moves_of_host(const BothMemories& both) {
  for (const DType dtype : {DType::kBF16, DType::kU8, DType::kF64}) {
    for (const std::size_t count : kCounts) {
      expect_equal("all_gather", both, dtype, count, all_gather);
      expect_equal("all_to_all", both, dtype, count, all_to_all);
      expect_equal("broadcast", both, dtype, count, broadcast_from_both_ends);
      if (both.host.size() > 1) {
        expect_equal("send and recv", both, dtype, count, send_round_a_ring);
      }
    }
  }
}

void expect_splits_of_host(const BothMemories& both) {
  for (const int colors : {1, 2}) {
    const int color = both.host.rank() % colors;
    const int key = both.host.size() - both.host.rank();
    const auto host = both.host.split(color, key, "part");
    const auto devices = both.devices.split(color, key, "part");
    ASSERT_EQ(devices->size(), host->size());
    ASSERT_EQ(devices->rank(), host->rank());
    const BothMemories parts = {*host, *devices, both.device};
    expect_equal("all_gather", parts, DType::kF32, 777, all_gather);
    expect_equal("all_reduce", parts, DType::kBF16, 777, all_reduce);
    expect_equal("all_to_all", parts, DType::kU8, 777, all_to_all);
  }
}

}  // namespace terrace
