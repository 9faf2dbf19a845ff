#pragma once

#include <cstring>
#include <utility>

#include "tests/capi/fake_cuda.h"
#include "tests/capi/trained_session.h"

// The session of trained_session.h with parameters and gradients in memory of two fake GPUs.
namespace terrace::test {

inline int gpu_of(std::size_t tensor) { return tensor < 4 ? 0 : 1; }

inline terrace_buffer gpu_buffer(void* data, std::int64_t elements, std::int32_t dtype, int device,
                                 void* stream) {
  terrace_buffer buffer = buffer_of(data, elements, dtype);
  buffer.device_type = TERRACE_DEVICE_CUDA;
  buffer.device_id = device;
  buffer.stream = stream;
  return buffer;
}

inline std::size_t width_of(std::int32_t dtype) { return dtype == TERRACE_DTYPE_FP32 ? 4 : 2; }

class GpuSession {
 public:
  // Gives the parameters the values of a TrainedSession, once their streams come to that.
  explicit GpuSession(const SessionChoice& choice = {}) {
    for (int device = 0; device < 2; ++device) {
      streams_[device] = fake_cuda_stream(device);
      backward_streams_[device] = fake_cuda_stream(device);
    }
    TrainedSession like;
    EXPECT_DONE(make_session(choice, &session_));
    EXPECT_DONE(add_group(session_, "adamw", 0.1));
    EXPECT_DONE(add_group(session_, "lion", 0));
    EXPECT_DONE(add_group(session_, "sgd", 0.01));
    for (std::size_t i = 0; i < test_tensors().size(); ++i) {
      const std::vector<std::byte>& bytes = like.bytes(i);
      parameters_.push_back(fake_cuda_allocate(gpu_of(i), bytes.size()));
      fake_cuda_write(gpu_of(i), stream(i), parameters_[i], bytes.data(), bytes.size());
      if (added_ == TERRACE_OK) added_ = add_tensor(i);
    }
    prepared_ = added_ == TERRACE_OK ? terrace_session_prepare(session_) : added_;
  }
  ~GpuSession() {
    EXPECT_DONE(terrace_session_destroy(session_));
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      fake_cuda_finish(gpu_of(i), stream(i));  // its first values, where nothing was prepared
      fake_cuda_free(parameters_[i]);
    }
    for (int device = 0; device < 2; ++device) {
      fake_cuda_stream_free(streams_[device]);
      fake_cuda_stream_free(backward_streams_[device]);
    }
  }
  GpuSession(const GpuSession&) = delete;
  GpuSession& operator=(const GpuSession&) = delete;

  terrace_session* get() const { return session_; }
  terrace_error prepared() const { return prepared_; }
  void* parameter(std::size_t tensor) const { return parameters_[tensor]; }
  // Returns a tensor's stream; the first two tensors use their GPU's default stream.
  void* stream(std::size_t tensor) const { return tensor < 2 ? nullptr : streams_[gpu_of(tensor)]; }

  static std::size_t size_of_parameter(std::size_t tensor) {
    const TestTensor& of = test_tensors()[tensor];
    return static_cast<std::size_t>(of.elements) * width_of(of.dtype);
  }

  // Returns the bytes that are in a parameter's memory now.
  std::vector<std::byte> bytes(std::size_t tensor) const {
    std::vector<std::byte> bytes(size_of_parameter(tensor));
    fake_cuda_peek(bytes.data(), parameters_[tensor], bytes.size());
    return bytes;
  }

  // Adds a gradient that is not there before its stream comes to it, and that is overwritten as
  // soon as the call returns.
  terrace_error add_gradient(std::size_t tensor, int step, int micro_batch) {
    TestGradient& gradient = test_gradient(tensor, step, micro_batch);
    const bool is_half = (tensor + static_cast<std::size_t>(micro_batch)) % 2 == 1;
    const std::int32_t dtype = is_half ? TERRACE_DTYPE_BF16 : TERRACE_DTYPE_FP32;
    const void* const values = is_half ? static_cast<const void*>(gradient.halves.data())
                                       : static_cast<const void*>(gradient.values.data());
    const std::int64_t count = test_tensors()[tensor].elements;
    const std::size_t size = static_cast<std::size_t>(count) * width_of(dtype);
    const int device = gpu_of(tensor);
    void* const memory = fake_cuda_allocate(device, size);
    void* const stream = backward_streams_[device];
    fake_cuda_write(device, stream, memory, values, size);
    const terrace_buffer buffer = gpu_buffer(memory, count, dtype, device, stream);
    const terrace_error error =
        terrace_gradient_add(session_, static_cast<std::int32_t>(tensor), &buffer);
    const std::vector<std::byte> other(size, std::byte{0x3C});
    fake_cuda_write(device, nullptr, memory, other.data(), size);
    fake_cuda_finish(device, nullptr);
    fake_cuda_finish(device, stream);
    fake_cuda_free(memory);
    return error;
  }

  // Adds the gradients of TrainedSession::add_gradients().
  void add_gradients(int step) {
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      for (std::size_t i = 0; i < parameters_.size(); ++i) {
        EXPECT_DONE(add_gradient(i, step, micro_batch));
      }
    }
  }

  terrace_error try_step(terrace_step_result& result) {
    const terrace_step_options options = TrainedSession::step_options();
    result = {};
    result.struct_size = sizeof result;
    return terrace_step(session_, &options, &result);
  }

  terrace_step_result step(int number) {
    add_gradients(number);
    terrace_step_result result = {};
    EXPECT_DONE(try_step(result));
    return result;
  }

  std::vector<float> state(std::int32_t tensor, const char* field) {
    std::vector<float> values(
        static_cast<std::size_t>(test_tensors()[static_cast<std::size_t>(tensor)].elements));
    const terrace_buffer out =
        buffer_of(values.data(), static_cast<std::int64_t>(values.size()), TERRACE_DTYPE_FP32);
    EXPECT_DONE(terrace_state_read(session_, tensor, field, 0, &out));
    return values;
  }

 private:
  terrace_error add_tensor(std::size_t i) {
    const TestTensor& tensor = test_tensors()[i];
    terrace_tensor_options options = tensor_options(
        tensor.name.c_str(),
        gpu_buffer(parameters_[i], tensor.elements, tensor.dtype, gpu_of(i), stream(i)));
    options.shape = &tensor.elements;
    std::int32_t number = -1;
    return terrace_tensor_add(session_, tensor.group, &options, &number);
  }

  void* streams_[2] = {};
  void* backward_streams_[2] = {};
  std::vector<void*> parameters_;
  terrace_session* session_ = nullptr;
  terrace_error added_ = TERRACE_OK;
  terrace_error prepared_ = TERRACE_ERROR_INTERNAL;
};

// Compares parameters and state, bit by bit.
inline void expect_same(TrainedSession& host, GpuSession& gpu) {
  for (std::size_t i = 0; i < test_tensors().size(); ++i) {
    const TestTensor& tensor = test_tensors()[i];
    const auto number = static_cast<std::int32_t>(i);
    EXPECT_TRUE(host.bytes(i) == gpu.bytes(i)) << tensor.name;
    const char* const fields[] = {"master", tensor.group == 2 ? "momentum_buffer" : "exp_avg"};
    for (const char* const field : fields) {
      EXPECT_TRUE(host.state(number, field) == gpu.state(number, field))
          << tensor.name << " " << field;
    }
  }
}

}  // namespace terrace::test
