#include "tests/sim/virtual_drive.h"

#include <algorithm>
#include <utility>

namespace terrace {

VirtualDrive::VirtualDrive(VirtualTime& time, const VirtualDriveOptions& options)
    : time_(time), options_(options), faults_(options.faults, MemoryFile::kAlignment) {
  time_.add(*this);
}

void VirtualDrive::submit(const Piece& piece) {
  Transfer transfer;
  transfer.progress = PieceProgress(piece, MemoryFile::kAlignment);
  begin(transfer);
  if (!hurried_) {
    in_flight_.push_back(transfer);
    return;
  }
  while (!advance(transfer)) {
  }
}

void VirtualDrive::begin(Transfer& transfer) {
  const Piece& piece = transfer.progress.piece();
  const bool reads = piece.direction == IoDirection::kRead;
  const SystemCall call{reads ? SystemCall::Kind::kRead : SystemCall::Kind::kWrite,
                        transfer.progress.rest_offset(), transfer.progress.rest().size()};
  transfer.fault = hurried_ ? SystemFault::none(call) : faults_.fate_of(call);
  transfer.is_carried = false;
  transfer.due_ns =
      time_.now_ns() + time_.draw_latency(options_.transfer_ns) + transfer.fault.delay_us * 1000;
}

void VirtualDrive::carry(Transfer& transfer) {
  const std::span<std::byte> memory = transfer.progress.rest().first(transfer.fault.asked_bytes);
  const bool reads = transfer.progress.piece().direction == IoDirection::kRead;
  std::int64_t result = 0;
  if (!memory.empty()) {
    result = reads ? file_.read_at(memory, transfer.progress.rest_offset())
                   : file_.write_at(memory, transfer.progress.rest_offset());
  }
  transfer.answer = answer_with(transfer.fault, result,
                                reads ? transfer.progress.rest() : std::span<std::byte>());
  transfer.is_carried = true;
  transfer.due_ns = time_.now_ns() + time_.draw_latency(options_.transfer_ns);
}

// Advances a piece. Returns whether it has ended; its end was reported then.
bool VirtualDrive::advance(Transfer& transfer) {
  if (!transfer.is_carried) {
    carry(transfer);
    return false;
  }
  if (transfer.progress.advance(transfer.answer) == PieceProgress::Next::kAgain) {
    begin(transfer);
    return false;
  }
  transfer.progress.piece().completion->piece_done(transfer.progress.result());
  return true;
}

std::optional<std::int64_t> VirtualDrive::due_ns() {
  std::optional<std::int64_t> first;
  for (const Transfer& transfer : in_flight_) {
    if (!first.has_value() || transfer.due_ns < *first) first = transfer.due_ns;
  }
  return first;
}

void VirtualDrive::act() {
  const auto first =
      std::ranges::min_element(in_flight_, {}, [](const Transfer& t) { return t.due_ns; });
  Transfer transfer = *first;
  in_flight_.erase(first);  // comes first: the completion lets others in
  if (!advance(transfer)) in_flight_.push_back(transfer);
}

void VirtualDrive::finish() {
  while (!in_flight_.empty()) act();
}

namespace {

class VirtualStripes final : public StripeFiles {
 public:
  explicit VirtualStripes(const VirtualDrives& drives) : drives_(drives) {
    for (std::size_t i = 0; i < drives.size(); ++i) {
      names_.push_back("/virtual" + std::to_string(i) + "/slots.bin");
    }
  }

  std::size_t count() const override { return drives_.size(); }
  void prepare(std::span<const std::uint64_t> sizes) override {
    for (std::size_t i = 0; i < drives_.size(); ++i) drives_[i]->resize(sizes[i]);
  }
  IoEngine& engine(std::size_t stripe) override { return *drives_[stripe]; }
  const std::string& file_name(std::size_t stripe) const override { return names_[stripe]; }
  std::size_t alignment() const override { return MemoryFile::kAlignment; }
  std::size_t spacing() const override { return MemoryFile::kAlignment; }
  std::vector<StorePath> paths() const override { return {}; }

 private:
  const VirtualDrives& drives_;
  std::vector<std::string> names_;
};

}  // namespace

std::unique_ptr<StripeFiles> make_virtual_stripes(const VirtualDrives& drives) {
  return std::make_unique<VirtualStripes>(drives);
}

}  // namespace terrace
