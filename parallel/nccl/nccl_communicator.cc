#include "parallel/nccl/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <exception>
#include <span>
#include <utility>

#include "base/error.h"
#include "memory/cuda/cuda_error.h"
#include "parallel/nccl/nccl_group.h"
#include "parallel/rendezvous.h"

namespace terrace {
namespace {

// A fixed number, so that the order of sums does not depend on how much of the GPU is free.
constexpr int kChannels = 16;

ncclConfig_t config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // so that abort() can end a call that waits
  config.minCTAs = kChannels;
  config.maxCTAs = kChannels;
  return config;
}

bool reduces(const CollectiveCall& call) {
  return call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kReduceScatter;
}

// Returns NCCL's type for a reduction. Calls that only move data move it as bytes.
ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    case DType::kF64:
      return ncclFloat64;
    case DType::kI32:
      return ncclInt32;
    case DType::kI16:
    case DType::kU8:
      break;
  }
  return ncclUint8;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::string name, int rank, int size, ncclComm_t communicator,
                   std::shared_ptr<NcclGroup> group)
      : Communicator(std::move(name), rank, size),
        communicator_(communicator),
        group_(std::move(group)) {}
  // If this rank leaves with an error, the other ranks must not wait for calls that it will not
  // make.
  ~NcclCommunicator() override {
    if (std::uncaught_exceptions() > 0) group_->abort_here("this rank ended with an error");
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  void abort(const std::string& reason) override { group_->abort(reason); }
  std::optional<std::string> abort_reason() override { return group_->abort_reason(); }

 private:
  std::string what(const CollectiveCall& call) const {
    return fmt::format("{} on communicator '{}' (rank {} of {})", describe(call), name(), rank(),
                       size());
  }

  void refuse_what_nccl_cannot(const CollectiveCall& call) const {
    if (!reduces(call)) return;
    if (call.op == ReduceOp::kSum && !nccl_adds(call.dtype, size())) {
      throw CommError(what(call) + ": NCCL rounds narrow numbers after every addition",
                      "reduce in fp32");
    }
    if (call.op == ReduceOp::kMax && call.dtype != DType::kI32) {
      throw CommError(what(call) + ": NCCL's maximum drops NaN", "reduce on the host");
    }
  }

  void run(const CollectiveCall& call, NativeStream native) override {
    refuse_what_nccl_cannot(call);
    use_cuda_device(group_->ordinal());
    const auto stream = static_cast<cudaStream_t>(native.handle);
    NcclGroup::Pending* const pending = group_->watch_from(call, name(), stream);
    const std::string text = what(call);
    if (call.kind == CollectiveKind::kAllReduce) {
      all_reduce(call, text, stream);
    } else {
      group_->enqueue(communicator_, text, [&] { return enqueue(call, stream); });
    }
    group_->watch_to(pending, stream);
  }

  // Enqueues any call except an all_reduce.
  ncclResult_t enqueue(const CollectiveCall& call, cudaStream_t stream) {
    const std::size_t bytes = call.size_bytes();
    const std::size_t part = bytes / static_cast<std::size_t>(size());
    switch (call.kind) {
      case CollectiveKind::kReduceScatter:
        return ncclReduceScatter(call.source, call.target,
                                 call.elements / static_cast<std::size_t>(size()),
                                 type_of(call.dtype), op_of(call), communicator_, stream);
      case CollectiveKind::kAllGather:
        return ncclAllGather(call.source, call.target, part, ncclUint8, communicator_, stream);
      case CollectiveKind::kBroadcast:
        return ncclBroadcast(call.source, call.target, bytes, ncclUint8, call.peer, communicator_,
                             stream);
      case CollectiveKind::kAllToAll:
        return all_to_all(call, part, stream);
      case CollectiveKind::kSend:
        return ncclSend(call.source, bytes, ncclUint8, call.peer, communicator_, stream);
      case CollectiveKind::kRecv:
        return ncclRecv(call.target, bytes, ncclUint8, call.peer, communicator_, stream);
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kSplit:
        break;
    }
    return ncclInvalidUsage;
  }

  static ncclRedOp_t op_of(const CollectiveCall& call) {
    return call.op == ReduceOp::kSum ? ncclSum : ncclMax;
  }

  // The steps depend on each other, so they run in stream order, not as a group. NCCL skips a call
  // of no elements, but that call must wait for the other ranks, so it adds a number that no one
  // reads.
  void all_reduce(const CollectiveCall& call, const std::string& text, cudaStream_t stream) {
    if (call.elements == 0) {
      group_->enqueue(communicator_, text, [&] {
        return ncclAllReduce(group_->barrier_number(), group_->barrier_number(), 1, ncclInt32,
                             ncclSum, communicator_, stream);
      });
      return;
    }
    const auto ranks = static_cast<std::size_t>(size());
    const std::size_t part = call.elements / ranks;
    const std::size_t width = size_of(call.dtype);
    std::byte* const own = call.target + static_cast<std::size_t>(rank()) * part * width;
    const std::size_t rest = call.elements - part * ranks;
    std::byte* const last = call.target + part * ranks * width;
    const ncclDataType_t type = type_of(call.dtype);
    if (part != 0) {
      group_->enqueue(communicator_, text, [&] {
        return ncclReduceScatter(call.target, own, part, type, op_of(call), communicator_, stream);
      });
      group_->enqueue(communicator_, text, [&] {
        return ncclAllGather(own, call.target, part * width, ncclUint8, communicator_, stream);
      });
    }
    if (rest == 0) return;
    group_->enqueue(communicator_, text, [&] {
      return ncclAllReduce(last, last, rest, type, op_of(call), communicator_, stream);
    });
  }

  ncclResult_t all_to_all(const CollectiveCall& call, std::size_t part, cudaStream_t stream) {
    ncclResult_t result = ncclGroupStart();
    for (int peer = 0; peer < size() && result == ncclSuccess; ++peer) {
      const std::size_t at = static_cast<std::size_t>(peer) * part;
      result = ncclSend(call.source + at, part, ncclUint8, peer, communicator_, stream);
      if (result != ncclSuccess) break;
      result = ncclRecv(call.target + at, part, ncclUint8, peer, communicator_, stream);
    }
    const ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
  }

  std::unique_ptr<Communicator> run_split(int color, int key, const std::string& name) override {
    const std::string text = what({.kind = CollectiveKind::kSplit});
    use_cuda_device(group_->ordinal());
    ncclConfig_t settings = config();
    const ncclComm_t part = group_->split(communicator_, color, key, settings, text);
    int part_rank = 0;
    int part_size = 0;
    group_->enqueue(part, text, [&] { return ncclCommUserRank(part, &part_rank); });
    group_->enqueue(part, text, [&] { return ncclCommCount(part, &part_size); });
    return std::make_unique<NcclCommunicator>(name, part_rank, part_size, part, group_);
  }

  const ncclComm_t communicator_;
  const std::shared_ptr<NcclGroup> group_;
};

// `share` gives the bytes of the first rank to all ranks.
std::unique_ptr<Communicator> join(std::shared_ptr<NcclGroup> group, const std::string& name,
                                   int rank, int size,
                                   FunctionRef<void(std::span<std::byte>)> share) {
  const std::string what = fmt::format("communicator '{}' of NCCL", name);
  ncclUniqueId id = {};
  // A rank 0 that has no id still calls share(), so that the other ranks do not wait.
  ncclResult_t result = rank == 0 ? ncclGetUniqueId(&id) : ncclSuccess;
  share({reinterpret_cast<std::byte*>(&id), sizeof(id)});
  group->settle(result, nullptr, what);
  use_cuda_device(group->ordinal());
  ncclConfig_t settings = config();
  ncclComm_t communicator = nullptr;
  result = ncclCommInitRankConfig(&communicator, size, id, rank, &settings);
  if (result != ncclInProgress) group->settle(result, communicator, what);
  group->add(communicator, what);
  return std::make_unique<NcclCommunicator>(name, rank, size, communicator, std::move(group));
}

}  // namespace

std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "NCCL of an unknown version";
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& meeting, const std::string& name,
                                                     int ordinal,
                                                     const CommunicatorOptions& options) {
  return join(std::make_shared<NcclGroup>(ordinal, &meeting, options), name, meeting.rank(),
              meeting.size(), [&](std::span<std::byte> id) { meeting.broadcast(view(id), 0, {}); });
}

std::unique_ptr<Communicator> make_nccl_world(const LaunchEnvironment& launch,
                                              const std::string& name, int ordinal,
                                              const CommunicatorOptions& options) {
  RendezvousOptions rendezvous = rendezvous_options(launch);
  rendezvous.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(options.timeout);
  return join(std::make_shared<NcclGroup>(ordinal, nullptr, options), name, launch.rank,
              launch.size, [&](std::span<std::byte> id) { share_from_first_rank(rendezvous, id); });
}

}  // namespace terrace
