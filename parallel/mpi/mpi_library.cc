#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/error.h"
#include "kernels/cpu/cpu_sum_bf16.h"
#include "parallel/mpi/mpi_session.h"

namespace terrace {
namespace {

// MPI has no bf16 of its own, so its collectives take their partial sums from this function. With
// two ranks the sum has the bits of the other communicators; with more, it is also rounded on the
// way.
void add_bf16(void* source, void* target, int* count, MPI_Datatype* /*type*/) {
  auto* const sum = static_cast<std::byte*>(target);
  const std::array<const std::byte*, 2> sources = {static_cast<const std::byte*>(source), sum};
  sum_bf16_in_order(std::span(&sum, 1), sources, static_cast<std::size_t>(*count));
}

// MPI's own collectives. Counts are int, so it takes only calls below 2 GiB.
class LibraryCommunicator final : public Communicator {
 public:
  LibraryCommunicator(const std::string& name, MPI_Comm comm, int rank, int size)
      : Communicator(name, rank, size), comm_(comm) {
    check(MPI_Op_create(add_bf16, 1, &add_bf16_));
  }
  ~LibraryCommunicator() override {
    MPI_Op_free(&add_bf16_);
    MPI_Comm_free(&comm_);
  }

  void abort(const std::string& /*reason*/) override { MPI_Abort(comm_, 1); }
  std::optional<std::string> abort_reason() override { return std::nullopt; }  // no rank is left

 private:
  void run(const CollectiveCall& call, NativeStream /*stream*/) override {
    TERRACE_CHECK_LT(call.size_bytes(), std::size_t{1} << 31);
    const MPI_Datatype type = call.dtype == DType::kF32    ? MPI_FLOAT
                              : call.dtype == DType::kBF16 ? MPI_UINT16_T
                                                           : MPI_INT32_T;
    const MPI_Op op = call.dtype == DType::kBF16  ? add_bf16_
                      : call.op == ReduceOp::kSum ? MPI_SUM
                                                  : MPI_MAX;
    const auto whole = static_cast<int>(call.elements);
    const auto bytes = static_cast<int>(call.size_bytes());
    switch (call.kind) {
      case CollectiveKind::kAllReduce:
        check_arithmetic(call);
        return check(MPI_Allreduce(MPI_IN_PLACE, call.target, whole, type, op, comm_));
      case CollectiveKind::kReduceScatter:
        check_arithmetic(call);
        return check(
            MPI_Reduce_scatter_block(call.source, call.target, whole / size(), type, op, comm_));
      case CollectiveKind::kAllGather:
        return check(MPI_Allgather(call.source, bytes / size(), MPI_BYTE, call.target,
                                   bytes / size(), MPI_BYTE, comm_));
      case CollectiveKind::kAllToAll:
        return check(MPI_Alltoall(call.source, bytes / size(), MPI_BYTE, call.target,
                                  bytes / size(), MPI_BYTE, comm_));
      case CollectiveKind::kBroadcast:
        return check(MPI_Bcast(call.target, bytes, MPI_BYTE, call.peer, comm_));
      case CollectiveKind::kSend:
        return check(MPI_Send(call.source, bytes, MPI_BYTE, call.peer, 0, comm_));
      case CollectiveKind::kRecv:
        return check(
            MPI_Recv(call.target, bytes, MPI_BYTE, call.peer, 0, comm_, MPI_STATUS_IGNORE));
      case CollectiveKind::kSplit:
        break;
    }
  }

  std::unique_ptr<Communicator> run_split(int color, int key, const std::string& name) override {
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(comm_, color, key, &part));
    int rank = 0;
    int size = 1;
    MPI_Comm_rank(part, &rank);
    MPI_Comm_size(part, &size);
    return std::make_unique<LibraryCommunicator>(name, part, rank, size);
  }

  static void check_arithmetic(const CollectiveCall& call) {
    const bool is_bf16_sum = call.dtype == DType::kBF16 && call.op == ReduceOp::kSum;
    TERRACE_CHECK(is_bf16_sum || call.dtype == DType::kF32 || call.dtype == DType::kI32);
  }
  void check(int code) const {
    if (code != MPI_SUCCESS) throw CommError(fmt::format("MPI failed on '{}'", name()), "");
  }

  MPI_Comm comm_;
  MPI_Op add_bf16_ = MPI_OP_NULL;
};

}  // namespace

std::unique_ptr<Communicator> MpiSession::make_library_world(const std::string& name) {
  MPI_Comm comm = MPI_COMM_NULL;
  if (MPI_Comm_dup(MPI_COMM_WORLD, &comm) != MPI_SUCCESS) {
    throw CommError("MPI_Comm_dup failed", "");
  }
  return std::make_unique<LibraryCommunicator>(name, comm, rank(), size());
}

}  // namespace terrace
