#include <gtest/gtest.h>

#include "tests/capi/gpu_session.h"

// Memory that is no GPU's, and a CUDA driver that fails.
namespace terrace::test {
namespace {

constexpr std::int64_t kLarge = 1048576 + 5;  // more than fits a piece of staging
constexpr std::int64_t kSmall = 3000;

// Returns values for parameters and gradients; none is zero.
const std::vector<float>& small_values() {
  static const std::vector<float> kValues = [] {
    std::vector<float> values;
    for (std::size_t i = 0; i < kLarge; ++i) values.push_back(0.25F + 0.01F * drawn(5, 3, i));
    return values;
  }();
  return kValues;
}

// A session with an fp32 and a bf16 parameter on GPU 0. Its calls return their errors.
class SmallSession {
 public:
  SmallSession() {
    memory_[0] = fake_cuda_allocate(0, kLarge * 4);
    memory_[1] = fake_cuda_allocate(0, kSmall * 2);
    gradients_ = fake_cuda_allocate(0, kLarge * 4);
    EXPECT_DONE(make_session({}, &session_));
    EXPECT_DONE(add_group(session_, "adamw", 0.1));
    const std::vector<float>& values = small_values();
    std::vector<Bf16> halves;
    for (std::size_t i = 0; i < kSmall; ++i) halves.push_back(to_bf16_nearest_even(values[i]));
    for (void* const memory : {memory_[0], gradients_}) {
      fake_cuda_write(0, nullptr, memory, values.data(), values.size() * 4);
    }
    fake_cuda_write(0, nullptr, memory_[1], halves.data(), halves.size() * 2);
    fake_cuda_finish(0, nullptr);
  }
  ~SmallSession() {
    EXPECT_DONE(terrace_session_destroy(session_));
    for (void* const memory : {memory_[0], memory_[1], gradients_}) fake_cuda_free(memory);
  }
  SmallSession(const SmallSession&) = delete;
  SmallSession& operator=(const SmallSession&) = delete;

  terrace_session* get() const { return session_; }

  terrace_buffer parameter(std::size_t tensor) const {
    const std::int64_t elements = tensor == 0 ? kLarge : kSmall;
    const std::int32_t dtype = tensor == 0 ? TERRACE_DTYPE_FP32 : TERRACE_DTYPE_BF16;
    return gpu_buffer(memory_[tensor], elements, dtype, 0, nullptr);
  }

  terrace_buffer gradient(std::size_t tensor) const {
    const std::int64_t elements = tensor == 0 ? kLarge : kSmall;
    return gpu_buffer(gradients_, elements, TERRACE_DTYPE_FP32, 0, nullptr);
  }

  terrace_error add(std::size_t tensor, const terrace_buffer& buffer) {
    terrace_tensor_options options = tensor_options(tensor == 0 ? "large" : "small", buffer);
    options.shape = &options.parameter.element_count;
    std::int32_t number = -1;
    return terrace_tensor_add(session_, 0, &options, &number);
  }

  // Returns the error of the first call that failed.
  terrace_error prepare() {
    for (const std::size_t tensor : {0, 1}) {
      const terrace_error error = add(tensor, parameter(tensor));
      if (error != TERRACE_OK) return error;
    }
    return terrace_session_prepare(session_);
  }

  terrace_error add_gradient(std::size_t tensor) {
    const terrace_buffer buffer = gradient(tensor);
    return terrace_gradient_add(session_, static_cast<std::int32_t>(tensor), &buffer);
  }

  terrace_error begin(std::uint32_t flags = 0) {
    const double rate = 0.5;
    terrace_step_options options = {};
    options.struct_size = sizeof options;
    options.flags = flags;
    options.learning_rates = &rate;
    options.learning_rate_count = 1;
    return terrace_step_begin(session_, &options);
  }

  terrace_error end() { return terrace_step_end(session_, nullptr); }

  terrace_error step() {
    const terrace_error error = begin();
    return error == TERRACE_OK ? end() : error;
  }

  // Makes a step with both gradients, in which nothing must fail.
  void train() {
    EXPECT_DONE(add_gradient(0));
    EXPECT_DONE(add_gradient(1));
    EXPECT_DONE(step());
  }

  // Return the bytes in a parameter's memory, and the sum of squares of a gradient's sum.
  std::vector<std::byte> bytes(std::size_t tensor) const {
    std::vector<std::byte> bytes(tensor == 0 ? kLarge * 4 : kSmall * 2);
    fake_cuda_peek(bytes.data(), memory_[tensor], bytes.size());
    return bytes;
  }
  double square_sum(std::int32_t tensor) {
    double sum = -1;
    EXPECT_DONE(terrace_gradient_square_sum(session_, tensor, &sum));
    return sum;
  }

 private:
  terrace_session* session_ = nullptr;
  void* memory_[2] = {};
  void* gradients_ = nullptr;
};

class GpuErrors : public testing::Test {
 protected:
  ~GpuErrors() override { EXPECT_EQ(fake_cuda_alive(), before_); }

  const std::int64_t before_ = fake_cuda_alive();
};

TEST_F(GpuErrors, WhatIsNoMemoryOfTheGpu) {
  SmallSession session;
  const terrace_buffer good = session.parameter(0);
  std::vector<float> host(kLarge);
  void* const other = fake_cuda_allocate(1, kLarge * 4);
  const auto expect = [&](const terrace_buffer& buffer, terrace_error error, const char* word) {
    expect_error(session.add(0, buffer), error, word);
    EXPECT_NE(std::string(terrace_last_error()).find("tensor large"), std::string::npos);
  };
  terrace_buffer buffer = good;
  buffer.data = host.data();
  expect(buffer, TERRACE_ERROR_ARGUMENT, "not memory that CUDA knows");
  buffer = good;
  buffer.data = other;
  expect(buffer, TERRACE_ERROR_ARGUMENT, "memory of GPU 1");
  buffer = good;
  buffer.device_id = 1;
  expect(buffer, TERRACE_ERROR_ARGUMENT, "memory of GPU 0");
  buffer.device_id = -1;
  expect(buffer, TERRACE_ERROR_ARGUMENT, "device_id");
  buffer = good;
  buffer.data = static_cast<std::byte*>(good.data) + 4;
  expect(buffer, TERRACE_ERROR_ARGUMENT, "ends beyond");
  buffer = good;
  buffer.device_type = 3;
  expect(buffer, TERRACE_ERROR_ARGUMENT, "device_type");
  fake_cuda_free(other);
}

TEST_F(GpuErrors, GradientsAndStateThatAreElsewhere) {
  SmallSession session;
  void* const other = fake_cuda_allocate(1, kLarge * 4);
  std::vector<float> host(kSmall, 1);
  EXPECT_DONE(session.add(0, session.parameter(0)));
  terrace_tensor_options options =
      tensor_options("small", buffer_of(host.data(), kSmall, TERRACE_DTYPE_FP32));
  options.shape = &options.parameter.element_count;
  std::int32_t number = -1;
  EXPECT_DONE(terrace_tensor_add(session.get(), 0, &options, &number));
  ASSERT_DONE(terrace_session_prepare(session.get()));

  terrace_buffer buffer = session.gradient(0);
  buffer.data = other;
  expect_error(terrace_gradient_add(session.get(), 0, &buffer), TERRACE_ERROR_ARGUMENT, "large");
  buffer.device_id = 1;
  expect_error(terrace_gradient_add(session.get(), 0, &buffer), TERRACE_ERROR_ARGUMENT,
               "the tensor is memory of GPU 0");
  expect_error(session.add_gradient(1), TERRACE_ERROR_ARGUMENT, "memory of the host");
  buffer = session.gradient(0);
  expect_error(terrace_state_read(session.get(), 0, "master", 0, &buffer),
               TERRACE_ERROR_UNSUPPORTED, "copy it to the host");
  expect_error(terrace_state_write(session.get(), 0, "master", 0, &buffer),
               TERRACE_ERROR_UNSUPPORTED, "copy it to the host");
  // A gradient may be on the host when the parameter is on a GPU.
  std::vector<float> gradient(kLarge, 1);
  buffer = buffer_of(gradient.data(), kLarge, TERRACE_DTYPE_FP32);
  EXPECT_DONE(terrace_gradient_add(session.get(), 0, &buffer));
  buffer = buffer_of(gradient.data(), kSmall, TERRACE_DTYPE_FP32);
  EXPECT_DONE(terrace_gradient_add(session.get(), 1, &buffer));
  EXPECT_DONE(session.step());
  fake_cuda_free(other);
}

TEST_F(GpuErrors, StagingIsInTheBudget) {
  GpuSession gpu({.host_bytes = 56U << 20});
  expect_error(gpu.prepared(), TERRACE_ERROR_DOES_NOT_FIT, "does not fit");
  TrainedSession host({.host_bytes = 56U << 20});
  EXPECT_DONE(host.prepared());
}

// Neither a refused tensor nor a frozen one makes a session take memory for copies.
TEST_F(GpuErrors, StagingIsForTensorsThatAreTrained) {
  SmallSession session;
  std::vector<float> host(kSmall, 1);
  terrace_tensor_options options = tensor_options("refused", session.parameter(0));
  options.shape = &options.parameter.element_count;
  std::int32_t number = -1;
  expect_error(terrace_tensor_add(session.get(), 7, &options, &number), TERRACE_ERROR_ARGUMENT,
               "group 7");
  options.name = "frozen";
  options.flags = TERRACE_TENSOR_FROZEN;
  EXPECT_DONE(terrace_tensor_add(session.get(), 0, &options, &number));
  options.name = "trained";
  options.flags = 0;
  options.parameter = buffer_of(host.data(), kSmall, TERRACE_DTYPE_FP32);
  EXPECT_DONE(terrace_tensor_add(session.get(), 0, &options, &number));
  const std::int64_t locked = fake_cuda_calls("cuMemHostRegister");
  ASSERT_DONE(terrace_session_prepare(session.get()));
  EXPECT_EQ(fake_cuda_calls("cuMemHostRegister"), locked);
  std::vector<float> gradient(kSmall, 1);
  const terrace_buffer buffer = buffer_of(gradient.data(), kSmall, TERRACE_DTYPE_FP32);
  EXPECT_DONE(terrace_gradient_add(session.get(), number, &buffer));
  EXPECT_DONE(session.step());
  EXPECT_NE(host[0], 1);
}

// A session keeps the order of one stream for each tensor, so tied tensors must name the same one.
TEST_F(GpuErrors, TiedTensorsHaveOneStream) {
  SmallSession session;
  EXPECT_DONE(session.add(0, session.parameter(0)));
  terrace_tensor_options options = tensor_options("tied", session.parameter(0));
  options.shape = &options.parameter.element_count;
  void* const stream = fake_cuda_stream(0);
  std::int32_t number = -1;
  options.parameter.stream = stream;
  expect_error(terrace_tensor_add(session.get(), 0, &options, &number), TERRACE_ERROR_ARGUMENT,
               "group and stream");
  options.parameter.stream = nullptr;
  EXPECT_DONE(terrace_tensor_add(session.get(), 0, &options, &number));
  EXPECT_EQ(number, 0);
  fake_cuda_stream_free(stream);
}

// Every driver call that is made until the session is prepared fails once.
TEST_F(GpuErrors, ADriverThatFailsBeforeTheFirstStep) {
  const char* const functions[] = {"cuInit",
                                   "cuDeviceGet",
                                   "cuDevicePrimaryCtxRetain",
                                   "cuCtxPushCurrent",
                                   "cuEventCreate",
                                   "cuStreamCreate",
                                   "cuEventRecord",
                                   "cuEventSynchronize",
                                   "cuMemHostRegister",
                                   "cuMemcpyDtoHAsync",
                                   "cuPointerGetAttribute",
                                   "cuStreamWaitEvent"};
  for (const std::string function : functions) {
    const std::int64_t calls = fake_cuda_calls(function.c_str());
    std::int64_t made = 0;
    {
      SmallSession session;
      ASSERT_DONE(session.prepare());
      made = fake_cuda_calls(function.c_str()) - calls;
    }
    EXPECT_GT(made, 0) << function;
    for (std::int64_t n = 1; n <= made; ++n) {
      SCOPED_TRACE(function + " " + std::to_string(n));
      SmallSession session;
      fake_cuda_fail(function.c_str(), static_cast<int>(n));
      const terrace_error error = session.prepare();
      fake_cuda_fail(function.c_str(), 0);
      const bool is_lock = function == "cuMemHostRegister";
      const bool is_known = function != "cuInit" && function != "cuDeviceGet" && !is_lock;
      expect_error(error, is_lock ? TERRACE_ERROR_DOES_NOT_FIT : TERRACE_ERROR_ENVIRONMENT,
                   is_known ? function : "GPU");
    }
    EXPECT_EQ(fake_cuda_alive(), before_) << function;
  }
}

// Every driver call that an addition makes fails once. The sum that was added to is forgotten, and
// may be made again. Other tensors keep their sums.
TEST_F(GpuErrors, ADriverThatFailsUnderAGradient) {
  SmallSession session;
  ASSERT_DONE(session.prepare());
  EXPECT_DONE(session.add_gradient(0));
  EXPECT_DONE(session.add_gradient(1));
  const double once = session.square_sum(0);
  const double other = session.square_sum(1);
  EXPECT_GT(once, 0);
  EXPECT_GT(other, 0);
  for (const std::string function : {"cuMemcpyDtoHAsync", "cuEventRecord", "cuEventSynchronize",
                                     "cuCtxPushCurrent", "cuPointerGetAttribute"}) {
    const std::int64_t calls = fake_cuda_calls(function.c_str());
    EXPECT_DONE(session.add_gradient(0));
    const std::int64_t made = fake_cuda_calls(function.c_str()) - calls;
    EXPECT_GT(made, 1) << function;
    EXPECT_GT(session.square_sum(0), once);
    for (std::int64_t n = 1; n <= made; ++n) {
      SCOPED_TRACE(function + " " + std::to_string(n));
      fake_cuda_fail(function.c_str(), static_cast<int>(n));
      expect_error(session.add_gradient(0), TERRACE_ERROR_ENVIRONMENT, "large");
      EXPECT_EQ(session.square_sum(0), 0);
      EXPECT_EQ(session.square_sum(1), other);
      expect_error(session.step(), TERRACE_ERROR_MISSING_GRADIENT, "large");
      EXPECT_DONE(session.add_gradient(0));
      EXPECT_EQ(session.square_sum(0), once);
    }
  }
  EXPECT_DONE(session.step());
}

// Every driver call that a step makes fails once. If the begin of a step fails, nothing has
// changed. A step that fails later ends the session, until a state is loaded.
TEST_F(GpuErrors, ADriverThatFailsUnderAStep) {
  const TemporaryDirectory directory;
  SmallSession other;
  ASSERT_DONE(other.prepare());
  ASSERT_DONE(terrace_save(other.get(), directory.path().c_str()));
  other.train();
  for (const std::string function :
       {"cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuEventRecord", "cuEventSynchronize",
        "cuCtxPushCurrent", "cuStreamWaitEvent"}) {
    const bool begins = function == "cuEventRecord" || function == "cuCtxPushCurrent" ||
                        function == "cuStreamWaitEvent";
    std::int64_t made = 1;  // until the first step is counted
    for (std::int64_t n = 0; n <= made; ++n) {
      SCOPED_TRACE(function + " " + std::to_string(n));
      SmallSession session;
      ASSERT_DONE(session.prepare());
      EXPECT_DONE(session.add_gradient(0));
      EXPECT_DONE(session.add_gradient(1));
      const std::int64_t calls = fake_cuda_calls(function.c_str());
      fake_cuda_fail(function.c_str(), static_cast<int>(n));
      if (begins && n == 1) {
        expect_error(session.begin(), TERRACE_ERROR_ENVIRONMENT, function);
        EXPECT_DONE(session.step());
      } else {
        ASSERT_DONE(session.begin());
        const terrace_error error = session.end();
        if (n == 0) {
          EXPECT_EQ(error, TERRACE_OK);
          made = fake_cuda_calls(function.c_str()) - calls;
          EXPECT_GT(made, 0);
        } else {
          expect_error(error, TERRACE_ERROR_ENVIRONMENT, function);
          expect_error(session.step(), TERRACE_ERROR_FAILED, "failed");
          EXPECT_DONE(terrace_load(session.get(), directory.path().c_str()));
          session.train();
        }
      }
      EXPECT_TRUE(session.bytes(0) == other.bytes(0));
      EXPECT_TRUE(session.bytes(1) == other.bytes(1));
    }
  }
}

// The end of a step completes the gradients that were not completed before.
TEST_F(GpuErrors, ADriverThatFailsUnderTheEndOfAnArrivingStep) {
  const TemporaryDirectory directory;
  SmallSession other;
  ASSERT_DONE(other.prepare());
  other.train();
  for (const char* const function : {"cuEventRecord", "cuStreamWaitEvent", "cuCtxPushCurrent"}) {
    for (const std::int32_t last : {0, 1}) {
      SCOPED_TRACE(std::string(function) + " " + std::to_string(last));
      SmallSession session;
      ASSERT_DONE(session.prepare());
      ASSERT_DONE(terrace_save(session.get(), directory.path().c_str()));
      ASSERT_DONE(session.begin(TERRACE_STEP_GRADIENTS_ARRIVE));
      ASSERT_DONE(session.add_gradient(0));
      ASSERT_DONE(session.add_gradient(1));
      ASSERT_DONE(terrace_gradient_complete(session.get(), 1 - last));
      ASSERT_DONE(terrace_wait_parameter(session.get(), 1 - last));  // the thread rests then
      fake_cuda_fail(function, 1);
      expect_error(session.end(), TERRACE_ERROR_ENVIRONMENT, function);
      expect_error(session.step(), TERRACE_ERROR_FAILED, "failed");
      EXPECT_DONE(terrace_load(session.get(), directory.path().c_str()));
      session.train();
      for (const std::size_t tensor : {0, 1})
        EXPECT_TRUE(session.bytes(tensor) == other.bytes(tensor));
    }
  }
}

TEST_F(GpuErrors, ADriverThatFailsUnderSavedState) {
  const TemporaryDirectory directory;
  SmallSession session;
  ASSERT_DONE(session.prepare());
  ASSERT_DONE(terrace_save(session.get(), directory.path().c_str()));
  fake_cuda_fail("cuMemcpyDtoHAsync", 1);
  expect_error(terrace_save(session.get(), directory.path().c_str()), TERRACE_ERROR_ENVIRONMENT,
               "large");
  fake_cuda_fail("cuMemcpyHtoDAsync", 1);
  expect_error(terrace_load(session.get(), directory.path().c_str()), TERRACE_ERROR_ENVIRONMENT,
               "large");
  expect_error(session.step(), TERRACE_ERROR_FAILED, "failed");
  EXPECT_DONE(terrace_load(session.get(), directory.path().c_str()));
  fake_cuda_fail("cuMemcpyDtoHAsync", 1);
  expect_error(terrace_parameter_adopt(session.get(), 1), TERRACE_ERROR_ENVIRONMENT, "small");
  EXPECT_DONE(terrace_load(session.get(), directory.path().c_str()));
}

// A load and a write that fail at the start have changed nothing.
TEST_F(GpuErrors, ADriverThatFailsBeforeStateIsChanged) {
  const TemporaryDirectory directory;
  SmallSession session;
  ASSERT_DONE(session.prepare());
  ASSERT_DONE(terrace_save(session.get(), directory.path().c_str()));
  std::vector<float> values(kSmall, 1);
  const terrace_buffer buffer = buffer_of(values.data(), kSmall, TERRACE_DTYPE_FP32);
  const std::vector<std::byte> old = session.bytes(0);
  for (const char* const function : {"cuEventRecord", "cuStreamWaitEvent", "cuCtxPushCurrent"}) {
    SCOPED_TRACE(function);
    fake_cuda_fail(function, 1);
    expect_error(terrace_load(session.get(), directory.path().c_str()), TERRACE_ERROR_ENVIRONMENT,
                 function);
    fake_cuda_fail(function, 1);
    expect_error(terrace_state_write(session.get(), 0, "master", 0, &buffer),
                 TERRACE_ERROR_ENVIRONMENT, function);
    EXPECT_TRUE(session.bytes(0) == old);
    EXPECT_DONE(terrace_save(session.get(), directory.path().c_str()));
  }
  session.train();
}

// The master and the rule's slots of a 16-bit parameter are on the host: they outlive the GPU.
TEST_F(GpuErrors, StateOf16BitParametersIsSavedWhenTheGpuIsLost) {
  const TemporaryDirectory directory;
  SmallSession session;
  EXPECT_DONE(session.add(1, session.parameter(1)));
  ASSERT_DONE(terrace_session_prepare(session.get()));
  const terrace_buffer gradient = session.gradient(1);
  EXPECT_DONE(terrace_gradient_add(session.get(), 0, &gradient));
  EXPECT_DONE(session.step());
  const auto read = [&](const char* field) {
    std::vector<float> values(kSmall, -1);
    const terrace_buffer out = buffer_of(values.data(), kSmall, TERRACE_DTYPE_FP32);
    EXPECT_DONE(terrace_state_read(session.get(), 0, field, 0, &out));
    return values;
  };
  const std::vector<float> master = read("master");
  const std::vector<float> average = read("exp_avg");
  const std::vector<std::byte> trained = session.bytes(1);
  fake_cuda_lose(true);
  expect_error(terrace_gradient_add(session.get(), 0, &gradient), TERRACE_ERROR_ENVIRONMENT, "cu");
  EXPECT_TRUE(read("master") == master);
  EXPECT_TRUE(read("exp_avg") == average);
  EXPECT_DONE(terrace_save(session.get(), directory.path().c_str()));
  fake_cuda_lose(false);
  EXPECT_DONE(terrace_gradient_add(session.get(), 0, &gradient));
  EXPECT_DONE(session.step());
  EXPECT_FALSE(session.bytes(1) == trained);
  EXPECT_DONE(terrace_load(session.get(), directory.path().c_str()));
  EXPECT_TRUE(session.bytes(1) == trained);
  EXPECT_TRUE(read("master") == master);
  EXPECT_TRUE(read("exp_avg") == average);
}

}  // namespace
}  // namespace terrace::test
