#include "parallel/rank_order_sums.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "parallel/rank_order.h"

namespace terrace {
namespace {

class RankOrderSums final : public Communicator {
 public:
  RankOrderSums(std::unique_ptr<Communicator> devices, std::shared_ptr<DeviceArithmetic> arithmetic,
                std::size_t piece_bytes)
      : Communicator(devices->name(), devices->rank(), devices->size()),
        arithmetic_(std::move(arithmetic)),
        piece_bytes_(piece_bytes),
        ranks_(static_cast<std::size_t>(size())),
        devices_(std::move(devices)) {
    TERRACE_CHECK_LE(ranks_ * std::max(kCacheLineBytes, ranks_ * sizeof(std::uint16_t)),
                     piece_bytes_);
    if (size() <= 2) return;
    packed_ = arithmetic_->allocate(piece_bytes_);
    received_ = arithmetic_->allocate(piece_bytes_);
  }

  void abort(const std::string& reason) override { devices_->abort(reason); }
  std::optional<std::string> abort_reason() override { return devices_->abort_reason(); }

 private:
  bool adds_here(const CollectiveCall& call) const {
    const bool reduces =
        call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kReduceScatter;
    const bool narrow = call.dtype == DType::kBF16 || call.dtype == DType::kF16;
    return reduces && narrow && call.op == ReduceOp::kSum && size() > 2;
  }

  void run(const CollectiveCall& call, NativeStream stream) override {
    if (!adds_here(call)) return repeat_call(call, *devices_, stream);
    if (call.elements == 0) {  // a barrier
      CollectiveCall barrier = call;
      barrier.dtype = DType::kF32;
      return repeat_call(barrier, *devices_, stream);
    }
    if (call.kind == CollectiveKind::kAllReduce) {
      all_reduce_in_pieces(call, stream);
    } else {
      reduce_scatter_in_pieces(call, stream);
    }
  }

  // Returns the largest number of elements of each rank in a piece, a whole number of cache lines.
  std::size_t part_max(DType dtype) const {
    return piece_bytes_ / ranks_ / kCacheLineBytes * kCacheLineBytes / size_of(dtype);
  }

  // Exchanges the values that every rank has for this one, and adds them.
  void exchange_and_add(std::byte* sum, const std::byte* parts, std::size_t part, DType dtype,
                        NativeStream stream) {
    std::byte* const received = received_->bytes().data();
    devices_->all_to_all(elements(received, ranks_ * part, dtype),
                         elements(parts, ranks_ * part, dtype), stream);
    arithmetic_->add_ranks(elements(sum, part, dtype), received, size(), stream);
  }

  void all_reduce_in_pieces(const CollectiveCall& call, NativeStream stream) {
    const std::size_t width = size_of(call.dtype);
    const auto own = static_cast<std::size_t>(rank());
    std::byte* at = call.target;
    std::size_t left = call.elements;
    while (left >= ranks_) {
      const std::size_t part = std::min(part_max(call.dtype), left / ranks_);
      std::byte* const sum = at + own * part * width;
      exchange_and_add(sum, at, part, call.dtype, stream);
      devices_->all_gather(elements(at, ranks_ * part, call.dtype), elements(sum, part, call.dtype),
                           stream);
      at += ranks_ * part * width;
      left -= ranks_ * part;
    }
    if (left == 0) return;
    // Fewer elements are left than there are ranks, so every rank adds all of them.
    std::byte* const received = received_->bytes().data();
    devices_->all_gather(elements(received, ranks_ * left, call.dtype),
                         elements(at, left, call.dtype), stream);
    arithmetic_->add_ranks(elements(at, left, call.dtype), received, size(), stream);
  }

  // A piece of the source is read before the piece of the target, which may overlap it, is written.
  void reduce_scatter_in_pieces(const CollectiveCall& call, NativeStream stream) {
    const std::size_t width = size_of(call.dtype);
    const std::size_t whole = call.elements / ranks_;
    if (whole <= part_max(call.dtype)) {
      return exchange_and_add(call.target, call.source, whole, call.dtype, stream);
    }
    for (std::size_t begin = 0; begin < whole;) {
      const std::size_t part = std::min(part_max(call.dtype), whole - begin);
      std::byte* const packed = packed_->bytes().data();
      arithmetic_->pack_rows(packed,
                             {.data = const_cast<std::byte*>(call.source) + begin * width,
                              .dtype = call.dtype,
                              .rows = size(),
                              .width = static_cast<std::int64_t>(part),
                              .stride = static_cast<std::int64_t>(whole)},
                             stream);
      exchange_and_add(call.target + begin * width, packed, part, call.dtype, stream);
      begin += part;
    }
  }

  static TensorView elements(const std::byte* data, std::size_t count, DType dtype) {
    return view(const_cast<std::byte*>(data), dtype, static_cast<std::int64_t>(count));
  }

  std::unique_ptr<Communicator> run_split(int color, int key, const std::string& name) override {
    return make_rank_order_sums(devices_->split(color, key, name), arithmetic_, piece_bytes_);
  }

  const std::shared_ptr<DeviceArithmetic> arithmetic_;
  const std::size_t piece_bytes_;
  const std::size_t ranks_;
  std::unique_ptr<DeviceMemory> packed_;         // to be sent
  std::unique_ptr<DeviceMemory> received_;       // the parts of all ranks, one after another
  const std::unique_ptr<Communicator> devices_;  // last: it ends before the memory that it works on
};

}  // namespace

std::unique_ptr<Communicator> make_rank_order_sums(std::unique_ptr<Communicator> devices,
                                                   std::shared_ptr<DeviceArithmetic> arithmetic,
                                                   std::size_t piece_bytes) {
  return std::make_unique<RankOrderSums>(std::move(devices), std::move(arithmetic), piece_bytes);
}

}  // namespace terrace
