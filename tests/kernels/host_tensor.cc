#include "tests/kernels/host_tensor.h"

#include <cstring>

#include "base/philox.h"

namespace terrace::test {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t storage_bytes(DType dtype, const Shape& shape) {
  const auto elements = static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]);
  return elements * size_of(dtype) + size_of(dtype) + kAlignment;
}

}  // namespace

double Random::uniform() {
  const auto bits = philox(PhiloxKey{seed_}, PhiloxCounter{index_++, 0, 0});
  return 2.0 * static_cast<double>(uniform_from_bits(bits[0])) - 1.0;
}

std::int32_t Random::below(std::int32_t bound) {
  const auto bits = philox(PhiloxKey{seed_}, PhiloxCounter{index_++, 0, 0});
  return static_cast<std::int32_t>(bits[0] % static_cast<std::uint32_t>(bound));
}

HostTensor::HostTensor(DType dtype, Shape shape)
    : storage_(storage_bytes(dtype, shape)), view_{nullptr, dtype, shape} {
  view_.data = storage_.data() + (storage_.size() - view_.size_bytes());
}

HostTensor::HostTensor(const HostTensor& other) : HostTensor(other.view_.dtype, other.view_.shape) {
  std::memcpy(view_.data, other.view_.data, view_.size_bytes());
}

HostTensor HostTensor::on_boundary() const {
  HostTensor copy(view_.dtype, view_.shape);
  copy.storage_.resize(view_.size_bytes() + kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(copy.storage_.data());
  copy.view_.data = copy.storage_.data() + (kAlignment - address % kAlignment) % kAlignment;
  std::memcpy(copy.view_.data, view_.data, view_.size_bytes());
  return copy;
}

HostTensor HostTensor::random(DType dtype, Shape shape, Random& random, double scale) {
  HostTensor tensor(dtype, shape);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, scale * random.uniform());
  return tensor;
}

HostTensor HostTensor::random_indices(Shape shape, Random& random, std::int32_t bound) {
  HostTensor tensor(DType::kI32, shape);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, random.below(bound));
  return tensor;
}

double HostTensor::at(std::int64_t i) const {
  switch (view_.dtype) {
    case DType::kF32:
      return static_cast<double>(view_.as<float>()[i]);
    case DType::kBF16:
      return static_cast<double>(to_float(view_.as<Bf16>()[i]));
    case DType::kF16:
      return static_cast<double>(to_float(view_.as<Fp16>()[i]));
    case DType::kF64:
      return view_.as<double>()[i];
    case DType::kI32:
      return view_.as<std::int32_t>()[i];
    case DType::kI16:
      return view_.as<std::int16_t>()[i];
    case DType::kU8:
      break;
  }
  return static_cast<double>(view_.as<std::byte>()[i]);
}

void HostTensor::set(std::int64_t i, double value) {
  switch (view_.dtype) {
    case DType::kF32:
      view_.as<float>()[i] = static_cast<float>(value);
      return;
    case DType::kBF16:
      view_.as<Bf16>()[i] = to_bf16_nearest_even(static_cast<float>(value));
      return;
    case DType::kF16:
      view_.as<Fp16>()[i] = to_fp16_nearest_even(static_cast<float>(value));
      return;
    case DType::kF64:
      view_.as<double>()[i] = value;
      return;
    case DType::kI32:
      view_.as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
      return;
    case DType::kI16:
      view_.as<std::int16_t>()[i] = static_cast<std::int16_t>(value);
      return;
    case DType::kU8:
      view_.as<std::byte>()[i] = static_cast<std::byte>(value);
  }
}

std::vector<double> HostTensor::values() const {
  std::vector<double> result(static_cast<std::size_t>(elements()));
  for (std::int64_t i = 0; i < elements(); ++i) result[i] = at(i);
  return result;
}

void HostTensor::fill_garbage() { std::memset(view_.data, 0xFF, view_.size_bytes()); }

HostTensor HostTensor::widened() const {
  HostTensor wide(test::widened(view_.dtype), view_.shape);
  for (std::int64_t i = 0; i < elements(); ++i) wide.set(i, at(i));
  return wide;
}

DType widened(DType dtype) {
  const bool is_compute = dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
  return is_compute ? DType::kF64 : dtype;
}

}  // namespace terrace::test
