#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/capi/trained_session.h"
#include "tests/capi/unit_training.h"

// The structs of dmlc/dlpack, include/dlpack/dlpack.h, written out here as a consumer is compiled
// with them. NOLINTBEGIN(readability-identifier-naming)
struct DLPackVersion {
  std::uint32_t major, minor;
};
struct DLDevice {
  std::int32_t device_type, device_id;
};
struct DLDataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  std::uint64_t flags;
  DLTensor dl_tensor;
};
// NOLINTEND(readability-identifier-naming)

// Memory of Terrace that others hold.
namespace terrace::test {
namespace {

constexpr std::int32_t kHead = 3;

DLManagedTensorVersioned* gradient_lease(terrace_session* session, std::int32_t tensor) {
  DLManagedTensorVersioned* lease = nullptr;
  EXPECT_DONE(terrace_gradient_lease(session, tensor, &lease));
  return lease;
}

// Expects a dense fp32 tensor of one dimension on the CPU.
void expect_flat(const DLTensor& tensor, std::int64_t elements, int code, int bits) {
  EXPECT_EQ(tensor.device.device_type, TERRACE_DEVICE_CPU);
  EXPECT_EQ(tensor.device.device_id, 0);
  ASSERT_EQ(tensor.ndim, 1);
  EXPECT_EQ(tensor.shape[0], elements);
  ASSERT_NE(tensor.strides, nullptr);
  EXPECT_EQ(tensor.strides[0], 1);
  EXPECT_EQ(tensor.byte_offset, 0U);
  EXPECT_EQ(tensor.dtype.code, code);
  EXPECT_EQ(tensor.dtype.bits, bits);
  EXPECT_EQ(tensor.dtype.lanes, 1);
}

TEST(CapiLease, IsTheGradientItself) {
  TrainedSession session;
  EXPECT_EQ(gradient_lease(session.get(), kHead), nullptr);
  session.add_gradients(1);
  terrace_buffer view = {};
  ASSERT_DONE(terrace_gradient_view(session.get(), kHead, &view));
  DLManagedTensorVersioned* const lease = gradient_lease(session.get(), kHead);
  ASSERT_NE(lease, nullptr);
  EXPECT_EQ(lease->version.major, 1U);
  EXPECT_EQ(lease->flags, 0U);
  EXPECT_EQ(lease->dl_tensor.data, view.data);
  expect_flat(lease->dl_tensor, view.element_count, 2, 32);
  lease->deleter(lease);
  expect_error(terrace_gradient_lease(session.get(), 0, nullptr), TERRACE_ERROR_ARGUMENT, "lease");
  DLManagedTensorVersioned* none = nullptr;
  expect_error(terrace_gradient_lease(session.get(), 99, &none), TERRACE_ERROR_ARGUMENT, "99");
}

TEST(CapiLease, HasTheShapeOfTheTensor) {
  terrace_session* session = nullptr;
  ASSERT_DONE(make_session({}, &session));
  ASSERT_DONE(add_group(session, "sgd", 0));
  std::vector<float> values(24, 1.0F);
  const terrace_buffer buffer = buffer_of(values.data(), 24, TERRACE_DTYPE_FP32);
  const std::int64_t shape[] = {2, 3, 4};
  terrace_tensor_options tensor = {};
  tensor.struct_size = sizeof tensor;
  tensor.name = "cube";
  tensor.parameter = buffer;
  tensor.shape = shape;
  tensor.dimension_count = 3;
  std::int32_t number = -1;
  ASSERT_DONE(terrace_tensor_add(session, 0, &tensor, &number));
  ASSERT_DONE(terrace_session_prepare(session));
  ASSERT_DONE(terrace_gradient_add(session, number, &buffer));
  DLManagedTensorVersioned* const lease = gradient_lease(session, number);
  ASSERT_EQ(lease->dl_tensor.ndim, 3);
  EXPECT_TRUE(std::equal(shape, shape + 3, lease->dl_tensor.shape));
  const std::int64_t strides[] = {12, 4, 1};
  EXPECT_TRUE(std::equal(strides, strides + 3, lease->dl_tensor.strides));
  lease->deleter(lease);
  EXPECT_DONE(terrace_session_destroy(session));
}

TEST(CapiLease, WhatIsWrittenCountsInTheStep) {
  TrainedSession leased;
  TrainedSession same;
  leased.add_gradients(1);
  same.add_gradients(1);
  DLManagedTensorVersioned* const lease = gradient_lease(leased.get(), kHead);
  terrace_buffer view = {};
  ASSERT_DONE(terrace_gradient_view(same.get(), kHead, &view));
  for (std::int64_t i = 0; i < view.element_count; ++i) {
    const float value = i % 2 == 0 ? 0.25F : -1.0F;
    static_cast<float*>(lease->dl_tensor.data)[i] = value;
    static_cast<float*>(view.data)[i] = value;
  }
  const std::vector<std::byte> untouched = same.parameters()[kHead];
  const terrace_step_options options = TrainedSession::step_options();
  ASSERT_DONE(terrace_step(leased.get(), &options, nullptr));  // the lease is out
  lease->deleter(lease);
  ASSERT_DONE(terrace_step(same.get(), &options, nullptr));
  EXPECT_EQ(leased.parameters(), same.parameters());
  EXPECT_NE(leased.parameters()[kHead], untouched);
}

TEST(CapiLease, IsThereAfterTheSession) {
  DLManagedTensorVersioned* lease = nullptr;
  DLManagedTensorVersioned* other = nullptr;
  std::vector<float> before;
  {
    TrainedSession session;
    session.add_gradients(1);
    lease = gradient_lease(session.get(), kHead);
    const auto* const values = static_cast<const float*>(lease->dl_tensor.data);
    before.assign(values, values + lease->dl_tensor.shape[0]);
    EXPECT_EQ(before[7], gradient_of(kHead, 1, 0)[7] + gradient_of(kHead, 1, 1)[7]);
    other = gradient_lease(session.get(), 1);
  }
  auto* const values = static_cast<float*>(lease->dl_tensor.data);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), values));
  other->deleter(other);
  std::fill_n(values, lease->dl_tensor.shape[0], 3.0F);
  const pid_t child = fork();
  if (child == 0) {
    lease->deleter(lease);  // does nothing here
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(values[lease->dl_tensor.shape[0] - 1], 3.0F);
  std::thread([&] { lease->deleter(lease); }).join();
}

TEST(CapiLease, APauseWaitsForItsEnd) {
  const TemporaryDirectory drive;
  TrainedSession session;
  session.add_gradients(1);
  DLManagedTensorVersioned* const lease = gradient_lease(session.get(), kHead);
  expect_error(terrace_pause(session.get(), drive.path().c_str()), TERRACE_ERROR_ORDER, "lease");
  // A thread that sees the end of the lease sees what another thread has written.
  std::thread other([&] {
    static_cast<float*>(lease->dl_tensor.data)[5] = 42;
    lease->deleter(lease);
  });
  terrace_error error = TERRACE_ERROR_ORDER;
  while (error == TERRACE_ERROR_ORDER) error = terrace_pause(session.get(), drive.path().c_str());
  ASSERT_EQ(error, TERRACE_OK) << terrace_last_error();
  other.join();
  DLManagedTensorVersioned* none = nullptr;
  expect_error(terrace_gradient_lease(session.get(), kHead, &none), TERRACE_ERROR_ORDER,
               "terrace_resume()");
  ASSERT_DONE(terrace_resume(session.get()));
  terrace_buffer view = {};
  ASSERT_DONE(terrace_gradient_view(session.get(), kHead, &view));
  EXPECT_EQ(static_cast<float*>(view.data)[5], 42);
}

TEST(CapiLease, AnOlderFormTakesItsPlace) {
  TrainedSession session;
  session.add_gradients(1);
  DLManagedTensorVersioned* const lease = gradient_lease(session.get(), kHead);
  DLManagedTensor* plain = nullptr;
  ASSERT_DONE(terrace_lease_unversioned(lease, &plain));
  EXPECT_EQ(plain->dl_tensor.data, lease->dl_tensor.data);
  expect_flat(plain->dl_tensor, test_tensors()[kHead].elements, 2, 32);
  plain->deleter(plain);
  const TemporaryDirectory drive;
  EXPECT_DONE(terrace_pause(session.get(), drive.path().c_str()));  // no lease is out
  DLManagedTensorVersioned foreign = {};
  expect_error(terrace_lease_unversioned(&foreign, &plain), TERRACE_ERROR_ARGUMENT, "Terrace");
}

TEST(CapiLease, HoldsAnAcquiredUnit) {
  for (const std::int32_t dtype : {TERRACE_DTYPE_FP32, TERRACE_DTYPE_BF16}) {
    UnitTraining leased({.dtype = dtype});
    UnitTraining same({.dtype = dtype});
    leased.begin();
    same.begin();
    same.step(1);
    ASSERT_DONE(terrace_units_step_begin(leased.get(), 0.01));
    DLManagedTensorVersioned* lease = nullptr;
    expect_error(terrace_unit_lease(leased.get(), 0, TERRACE_PART_PARAMETERS, &lease),
                 TERRACE_ERROR_ORDER, "layer0");
    for (const UnitTask& task : leased.order()) {
      leased.compute(task, 1, [&](const terrace_unit_memory& memory) {
        DLManagedTensorVersioned* parameters = nullptr;
        DLManagedTensorVersioned* gradient = nullptr;
        ASSERT_DONE(
            terrace_unit_lease(leased.get(), task.unit, TERRACE_PART_PARAMETERS, &parameters));
        ASSERT_DONE(terrace_unit_lease(leased.get(), task.unit, TERRACE_PART_GRADIENT, &gradient));
        expect_error(terrace_unit_lease(leased.get(), task.unit, 2, &lease), TERRACE_ERROR_ARGUMENT,
                     "part");
        EXPECT_EQ(parameters->dl_tensor.data, memory.parameters);
        EXPECT_EQ(parameters->flags, 1U);
        const bool is_bf16 = dtype == TERRACE_DTYPE_BF16;
        expect_flat(parameters->dl_tensor, kUnitElements[task.unit], is_bf16 ? 4 : 2,
                    is_bf16 ? 16 : 32);
        DLManagedTensor* plain = nullptr;
        expect_error(terrace_lease_unversioned(parameters, &plain), TERRACE_ERROR_UNSUPPORTED,
                     "read-only");
        ASSERT_EQ(gradient == nullptr, memory.gradient == nullptr);
        if (gradient != nullptr) {
          EXPECT_EQ(gradient->dl_tensor.data, memory.gradient);
          expect_flat(gradient->dl_tensor, kUnitElements[task.unit], 2, 32);
          gradient->deleter(gradient);
        }
        expect_error(terrace_unit_release(leased.get(), task.unit), TERRACE_ERROR_ORDER, "lease");
        std::thread([&] { parameters->deleter(parameters); }).join();
      });
    }
    ASSERT_DONE(terrace_units_step_end(leased.get(), nullptr));
    EXPECT_EQ(leased.state(), same.state());
  }
}

TEST(CapiLease, OutlivesTheUnits) {
  DLManagedTensorVersioned* lease = nullptr;
  {
    UnitTraining training({});
    training.begin();
    ASSERT_DONE(terrace_units_step_begin(training.get(), 0.01));
    terrace_unit_memory memory = {};
    memory.struct_size = sizeof memory;
    ASSERT_DONE(terrace_unit_acquire(training.get(), 0, TERRACE_PASS_FORWARD, 0, &memory));
    ASSERT_DONE(terrace_unit_lease(training.get(), 0, TERRACE_PART_PARAMETERS, &lease));
  }
  const auto* const values = static_cast<const float*>(lease->dl_tensor.data);
  for (std::int64_t i = 0; i < kUnitElements[0]; ++i) ASSERT_EQ(values[i], first_parameter(0, i));
  lease->deleter(lease);
}

}  // namespace
}  // namespace terrace::test
