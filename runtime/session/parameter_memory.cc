#include "runtime/session/parameter_memory.h"

#include <algorithm>
#include <vector>

namespace terrace {

static_assert(StateHome::kChunkElements * sizeof(float) <= GpuMemory::kPieceBytes);

bool ParameterMemory::is_on_gpu(const StateChunk& chunk) const {
  return table_.tensor(chunk.tensor).place.is_gpu();
}

void ParameterMemory::order_after_callers() { order(false); }

void ParameterMemory::order_masters_after_callers() { order(true); }

void ParameterMemory::order(bool only_masters) {
  std::vector<GpuPlace> ordered;
  for (const SessionTensor& tensor : table_.tensors()) {
    if (!tensor.place.is_gpu() || tensor.is_frozen) continue;
    const StateFormat format = state_format_of(tensor, table_.group_of(tensor));
    if (only_masters && format.master != MasterForm::kParameter) continue;
    if (std::ranges::find(ordered, tensor.place) != ordered.end()) continue;
    gpus_.order_after(tensor.place, tensor.name);
    ordered.push_back(tensor.place);
  }
}

void ParameterMemory::order_after_caller(std::int32_t tensor) {
  const SessionTensor& of = table_.tensor(tensor);
  if (of.place.is_gpu()) gpus_.order_after(of.place, of.name);
}

DeviceBytes ParameterMemory::bytes_of(const StateChunk& chunk) const {
  const SessionTensor& tensor = table_.tensor(chunk.tensor);
  const std::size_t width = size_of(tensor.dtype);
  return {.data = tensor.data + static_cast<std::size_t>(chunk.begin) * width,
          .size_bytes = static_cast<std::size_t>(chunk.elements) * width,
          .name = tensor.name};
}

std::span<std::byte> ParameterMemory::host_bytes(const StateChunk& chunk) const {
  const DeviceBytes bytes = bytes_of(chunk);
  return {bytes.data, bytes.size_bytes};
}

std::span<std::byte> ParameterMemory::room(const StateChunk& chunk) {
  if (!is_on_gpu(chunk)) return host_bytes(chunk);
  // The other piece may still be on its way to a GPU.
  piece_ = piece_ == GpuMemory::kParameterPiece ? piece_ + 1 : GpuMemory::kParameterPiece;
  return gpus_.piece(piece_).first(bytes_of(chunk).size_bytes);
}

std::span<std::byte> ParameterMemory::read(const StateChunk& chunk) {
  const std::span<std::byte> memory = room(chunk);
  if (!is_on_gpu(chunk)) return memory;
  gpus_.start_read(piece_, 0, table_.tensor(chunk.tensor).place, bytes_of(chunk));
  gpus_.wait(piece_);
  return memory;
}

void ParameterMemory::write_back(const StateChunk& chunk) {
  if (!is_on_gpu(chunk)) return;
  gpus_.start_write(piece_, table_.tensor(chunk.tensor).place, bytes_of(chunk));
}

void ParameterMemory::wait() {
  gpus_.wait(GpuMemory::kParameterPiece);
  gpus_.wait(GpuMemory::kParameterPiece + 1);
}

void ParameterMemory::sample(
    std::span<const StateChunk* const> chunks,
    FunctionRef<void(std::size_t i, std::span<const std::byte> bytes)> body) {
  constexpr std::size_t kAtOnce = GpuMemory::kPieceBytes / kSampleBytes;
  for (std::size_t begin = 0; begin < chunks.size(); begin += kAtOnce) {
    const std::size_t end = std::min(begin + kAtOnce, chunks.size());
    const std::span<std::byte> memory = gpus_.piece(GpuMemory::kParameterPiece);
    for (std::size_t i = begin; i < end; ++i) {
      DeviceBytes bytes = bytes_of(*chunks[i]);
      bytes.size_bytes = std::min(bytes.size_bytes, kSampleBytes);
      gpus_.start_read(GpuMemory::kParameterPiece, (i - begin) * kSampleBytes,
                       table_.tensor(chunks[i]->tensor).place, bytes);
    }
    gpus_.wait(GpuMemory::kParameterPiece);
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t size = std::min(bytes_of(*chunks[i]).size_bytes, kSampleBytes);
      body(i, memory.subspan((i - begin) * kSampleBytes, size));
    }
  }
}

}  // namespace terrace
