#include "runtime/engine/connect_ranks.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/function_ref.h"
#include "memory/stream_call.h"

namespace terrace {
namespace {

constexpr std::size_t kBytesOfRank = 64;

// The first calls over one kind of memory: a device's with a stream, or the host's without.
class FirstCalls {
 public:
  FirstCalls(const StepRanks& ranks, std::span<std::byte> memory, std::unique_ptr<Stream> stream)
      : ranks_(ranks), memory_(memory), stream_(std::move(stream)) {}

  void make(const SummedTypes& types) {
    connect_group(end_of(ranks_.data), types.gradients);
    for (const StepGroup* islands : {&ranks_.island, &ranks_.inter_island}) {
      Communicator* const group = end_of(*islands);
      if (group != nullptr) gather_once(*group);  // they make no sums
    }
    connect_group(end_of(ranks_.tensor), types.hidden);
    connect_stages();
    if (stream_ == nullptr) connect_group(ranks_.world, DType::kF32);
  }

 private:
  Communicator* end_of(const StepGroup& group) const {
    return stream_ == nullptr ? group.host : group.device;
  }

  void connect_group(Communicator* group, DType summed) {
    if (group == nullptr || group->size() == 1) return;
    const auto rank = static_cast<std::size_t>(group->rank());
    const TensorView all = gather_once(*group);
    const auto add = [&](const TensorView& sums) {
      const TensorView own = part_of(sums, rank);
      complete([&](NativeStream s) { group->reduce_scatter(own, sums, ReduceOp::kSum, s); });
      complete([&](NativeStream s) { group->all_reduce(sums, ReduceOp::kSum, s); });
    };
    add(all);
    if (summed != DType::kF32) add(numbers(static_cast<std::size_t>(group->size()), summed));
  }

  // Returns the view of the gathered numbers.
  TensorView gather_once(Communicator& group) {
    const TensorView all = numbers(static_cast<std::size_t>(group.size()), DType::kF32);
    const TensorView part = part_of(all, static_cast<std::size_t>(group.rank()));
    complete([&](NativeStream stream) { group.all_gather(all, part, stream); });
    return all;
  }

  // Connects pairs of stages in rounds, as the pairs were made: a stage talks to one other at a
  // time.
  void connect_stages() {
    const int stages = ranks_.shape.pipeline;
    if (stages == 1) return;
    const int stage = ranks_.position.pipeline;
    const int before = (stage + stages - 1) % stages;
    const TensorView message = numbers(1, DType::kF32);
    const auto send = [&](const StepGroup& to, int peer) {
      complete([&](NativeStream stream) { end_of(to)->send(message, peer, stream); });
    };
    const auto receive = [&](const StepGroup& from, int peer) {
      complete([&](NativeStream stream) { end_of(from)->recv(message, peer, stream); });
    };
    for (int round = 0; round < link_rounds(stages); ++round) {
      if (round_of_link(stage, stages) == round) {
        send(ranks_.links.next, kLaterStage);
        receive(ranks_.links.next_back, kLaterStage);
      } else if (round_of_link(before, stages) == round) {
        receive(ranks_.links.previous, kEarlierStage);
        send(ranks_.links.previous_back, kEarlierStage);
      }
    }
  }

  // Returns kBytesOfRank of the memory for each of `ranks` ranks.
  TensorView numbers(std::size_t ranks, DType dtype) const {
    TERRACE_CHECK_LE(ranks * kBytesOfRank, memory_.size());
    return view(memory_.data(), dtype,
                static_cast<std::int64_t>(ranks * kBytesOfRank / size_of(dtype)));
  }
  static TensorView part_of(const TensorView& all, std::size_t rank) {
    return view(all.data + rank * kBytesOfRank, all.dtype,
                static_cast<std::int64_t>(kBytesOfRank / size_of(all.dtype)));
  }

  void complete(FunctionRef<void(NativeStream)> call) {
    if (stream_ == nullptr) return call({});
    StreamCall work(call);
    stream_->run(work);
    stream_->synchronize();
    work.rethrow();
    ranks_.throw_if_aborted();
  }

  const StepRanks& ranks_;
  const std::span<std::byte> memory_;
  const std::unique_ptr<Stream> stream_;
};

}  // namespace

void connect_ranks(const StepRanks& ranks, const SummedTypes& types, std::span<std::byte> memory,
                   Device& device) {
  if (ranks.devices == nullptr) return;
  std::vector<std::byte> of_host(static_cast<std::size_t>(ranks.shape.ranks()) * kBytesOfRank);
  FirstCalls(ranks, of_host, nullptr).make(types);
  FirstCalls(ranks, memory, device.create_stream("connect")).make(types);
}

}  // namespace terrace
