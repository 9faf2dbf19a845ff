#include <algorithm>

#include "tests/capi/gpu_session.h"

// Parameters and gradients in memory of GPUs give the same bits as on the host.
namespace terrace::test {
namespace {

constexpr int kSteps = 3;

void expect_steps(const SessionChoice& choice) {
  const std::int64_t before = fake_cuda_alive();
  {
    TrainedSession host;
    GpuSession gpu(choice);
    ASSERT_DONE(gpu.prepared());
    for (int number = 1; number <= kSteps; ++number) {
      const terrace_step_result expected = host.step(number);
      const terrace_step_result result = gpu.step(number);
      EXPECT_EQ(result.gradient_norm, expected.gradient_norm);
      EXPECT_EQ(result.clip_coefficient, expected.clip_coefficient);
      EXPECT_LT(result.clip_coefficient, 1);
      expect_same(host, gpu);
    }
  }
  EXPECT_EQ(fake_cuda_alive(), before);
}

TEST(GpuTensors, StepAsThoseOfTheHost) { expect_steps({}); }

TEST(GpuTensors, StepWithStateOnNvme) {
  const TemporaryDirectory drive;
  expect_steps({.tier = TERRACE_TIER_NVME, .nvme = drive.path()});
}

TEST(GpuTensors, StepWithOneThread) { expect_steps({.threads = 1}); }

// When a wait returns, its parameter has come, although the step has not ended.
TEST(GpuTensors, ParametersComeOneByOne) {
  TrainedSession host;
  GpuSession gpu;
  ASSERT_DONE(gpu.prepared());
  for (int number = 1; number <= kSteps; ++number) {
    host.step(number);
    gpu.add_gradients(number);
    const terrace_step_options options = TrainedSession::step_options();
    ASSERT_DONE(terrace_step_begin(gpu.get(), &options));
    for (std::size_t i = 0; i < test_tensors().size(); ++i) {
      ASSERT_DONE(terrace_wait_parameter(gpu.get(), static_cast<std::int32_t>(i)));
      EXPECT_TRUE(gpu.bytes(i) == host.bytes(i)) << test_tensors()[i].name;
    }
    ASSERT_DONE(terrace_step_end(gpu.get(), nullptr));
  }
  expect_same(host, gpu);
}

TEST(GpuTensors, GradientsArriveWhileTheStepUpdates) {
  TrainedSession host;
  GpuSession gpu;
  ASSERT_DONE(gpu.prepared());
  terrace_step_options options = TrainedSession::step_options(0);
  for (int number = 1; number <= kSteps; ++number) {
    host.add_gradients(number);
    ASSERT_DONE(terrace_step(host.get(), &options, nullptr));
    options.flags = TERRACE_STEP_GRADIENTS_ARRIVE;
    ASSERT_DONE(terrace_step_begin(gpu.get(), &options));
    options.flags = 0;
    for (std::size_t i = test_tensors().size(); i-- > 0;) {
      // The caller's last work that reads the parameter.
      std::vector<std::byte> read(GpuSession::size_of_parameter(i));
      const std::vector<std::byte> old = gpu.bytes(i);
      fake_cuda_read_later(gpu_of(i), gpu.stream(i), read.data(), gpu.parameter(i), read.size());
      EXPECT_DONE(gpu.add_gradient(i, number, 0));
      EXPECT_DONE(gpu.add_gradient(i, number, 1));
      const auto tensor = static_cast<std::int32_t>(i);
      if (i != 2) {  // tensor 2 is completed by the end of the step
        EXPECT_DONE(terrace_gradient_complete(gpu.get(), tensor));
        EXPECT_DONE(terrace_wait_parameter(gpu.get(), tensor));
      }
      fake_cuda_finish(gpu_of(i), gpu.stream(i));
      EXPECT_TRUE(read == old) << test_tensors()[i].name;
    }
    ASSERT_DONE(terrace_step_end(gpu.get(), nullptr));
    expect_same(host, gpu);
  }
}

// Work that the caller's stream was given before a step reads the parameters as they were.
TEST(GpuTensors, AStepComesAfterWhatTheStreamHas) {
  GpuSession gpu;
  ASSERT_DONE(gpu.prepared());
  gpu.add_gradients(1);
  std::vector<std::vector<std::byte>> old;
  std::vector<std::vector<std::byte>> read;
  for (std::size_t i = 0; i < test_tensors().size(); ++i) {
    old.push_back(gpu.bytes(i));
    read.emplace_back(old[i].size());
    fake_cuda_read_later(gpu_of(i), gpu.stream(i), read[i].data(), gpu.parameter(i),
                         read[i].size());
  }
  terrace_step_result result = {};
  ASSERT_DONE(gpu.try_step(result));
  for (std::size_t i = 0; i < test_tensors().size(); ++i) {
    fake_cuda_finish(gpu_of(i), gpu.stream(i));
    EXPECT_TRUE(read[i] == old[i]) << test_tensors()[i].name;
    EXPECT_FALSE(gpu.bytes(i) == old[i]) << test_tensors()[i].name;
  }
}

TEST(GpuTensors, SumsOfSquaresAndViews) {
  TrainedSession host;
  GpuSession gpu;
  ASSERT_DONE(gpu.prepared());
  host.add_gradients(1);
  gpu.add_gradients(1);
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(test_tensors().size()); ++i) {
    double expected = 0;
    double sum = 0;
    EXPECT_DONE(terrace_gradient_square_sum(host.get(), i, &expected));
    EXPECT_DONE(terrace_gradient_square_sum(gpu.get(), i, &sum));
    EXPECT_EQ(sum, expected);
    terrace_buffer view = {};
    EXPECT_DONE(terrace_gradient_view(gpu.get(), i, &view));
    EXPECT_EQ(view.device_type, TERRACE_DEVICE_CPU);
  }
}

TEST(GpuTensors, AreSavedAndLoaded) {
  const TemporaryDirectory directory;
  TrainedSession host;
  GpuSession gpu;
  ASSERT_DONE(gpu.prepared());
  host.step(1);
  gpu.step(1);
  ASSERT_DONE(terrace_save(host.get(), (directory.path() + "/host").c_str()));
  ASSERT_DONE(terrace_save(gpu.get(), (directory.path() + "/gpu").c_str()));
  // Each session goes on from the state that the other has saved.
  host.step(2);
  gpu.step(2);
  ASSERT_DONE(terrace_load(host.get(), (directory.path() + "/gpu").c_str()));
  ASSERT_DONE(terrace_load(gpu.get(), (directory.path() + "/host").c_str()));
  expect_same(host, gpu);
  for (int number = 2; number <= kSteps; ++number) {
    host.step(number);
    gpu.step(number);
  }
  expect_same(host, gpu);
}

TEST(GpuTensors, ArePaused) {
  const TemporaryDirectory directory;
  TrainedSession host;
  GpuSession gpu;
  ASSERT_DONE(gpu.prepared());
  host.step(1);
  gpu.step(1);
  gpu.add_gradients(2);
  const std::int64_t ready = fake_cuda_alive();
  ASSERT_DONE(terrace_pause(gpu.get(), directory.path().c_str()));
  EXPECT_EQ(fake_cuda_alive(), ready - 1);  // nothing is page-locked
  fake_cuda_fail("cuMemHostRegister", 1);
  expect_error(terrace_resume(gpu.get()), TERRACE_ERROR_DOES_NOT_FIT, "lock");
  ASSERT_DONE(terrace_resume(gpu.get()));
  EXPECT_EQ(fake_cuda_alive(), ready);
  terrace_step_result result = {};
  ASSERT_DONE(gpu.try_step(result));
  host.step(2);
  expect_same(host, gpu);
}

// A new master, in part or whole, changes the parameter.
TEST(GpuTensors, StateIsWritten) {
  TrainedSession host;
  GpuSession gpu;
  ASSERT_DONE(gpu.prepared());
  host.step(1);
  gpu.step(1);
  std::vector<float> values(1200);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = drawn(77, 1, i);
  const terrace_buffer buffer = buffer_of(values.data(), 1200, TERRACE_DTYPE_FP32);
  for (const std::int32_t tensor : {1, 3}) {  // bf16, across the end of a chunk, and fp32
    const std::int64_t first = tensor == 1 ? 1048000 : 1047000;
    for (const char* const field : {"master", "exp_avg"}) {
      EXPECT_DONE(terrace_state_write(host.get(), tensor, field, first, &buffer));
      EXPECT_DONE(terrace_state_write(gpu.get(), tensor, field, first, &buffer));
    }
  }
  expect_same(host, gpu);
  host.step(2);
  gpu.step(2);
  expect_same(host, gpu);
}

// Only the first 4 KiB of a million elements are looked at.
TEST(GpuTensors, AChangedParameterIsSeenAndAdopted) {
  TrainedSession host;
  GpuSession gpu;
  ASSERT_DONE(gpu.prepared());
  host.step(1);
  gpu.step(1);
  std::vector<std::byte> changed = gpu.bytes(1);
  for (std::size_t i = 0; i < changed.size(); i += 2) {
    changed[i] ^= std::byte{1};
  }
  fake_cuda_write(gpu_of(1), gpu.stream(1), gpu.parameter(1), changed.data(), changed.size());
  gpu.add_gradients(2);
  terrace_step_result result = {};
  expect_error(gpu.try_step(result), TERRACE_ERROR_PARAMETER_CHANGED, "wide");
  EXPECT_DONE(terrace_parameter_adopt(gpu.get(), 1));
  EXPECT_DONE(gpu.try_step(result));
  host.bytes(1) = changed;
  EXPECT_DONE(terrace_parameter_adopt(host.get(), 1));
  host.step(2);
  expect_same(host, gpu);
}

// An fp32 parameter is its own master: training goes on from the values that are written into it
// between steps.
TEST(GpuTensors, AnFp32ParameterMayBeChanged) {
  TrainedSession host;
  GpuSession gpu;
  ASSERT_DONE(gpu.prepared());
  std::vector<std::byte> changed = host.bytes(3);
  std::ranges::reverse(changed);
  for (std::size_t i = 3; i < changed.size(); i += 4) changed[i] = std::byte{0x3E};
  host.bytes(3) = changed;
  fake_cuda_write(gpu_of(3), gpu.stream(3), gpu.parameter(3), changed.data(), changed.size());
  host.step(1);
  gpu.step(1);
  expect_same(host, gpu);
}

// A 16-bit parameter crosses the link once in a step, and a gradient once, besides the sample that
// is looked at. An fp32 parameter crosses it twice.
TEST(GpuTensors, NoMoreIsCopiedThanIsSaid) {
  GpuSession gpu;
  ASSERT_DONE(gpu.prepared());
  gpu.add_gradients(1);
  std::int64_t expected = 0;
  for (std::size_t i = 0; i < test_tensors().size(); ++i) {
    const TestTensor& tensor = test_tensors()[i];
    const auto size = static_cast<std::int64_t>(GpuSession::size_of_parameter(i));
    const std::int64_t chunks = (tensor.elements + 1048575) / 1048576;
    const std::int64_t last = size - (chunks - 1) * 2097152;
    expected += tensor.dtype == TERRACE_DTYPE_FP32
                    ? 2 * size
                    : size + (chunks - 1) * 4096 + std::min<std::int64_t>(last, 4096);
  }
  const std::int64_t before = fake_cuda_copied_bytes();
  terrace_step_result result = {};
  ASSERT_DONE(gpu.try_step(result));
  EXPECT_EQ(fake_cuda_copied_bytes() - before, expected);
}

}  // namespace
}  // namespace terrace::test
