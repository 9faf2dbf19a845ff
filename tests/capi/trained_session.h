#pragma once

#include <gtest/gtest.h>
#include <terrace.h>

#include <bit>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "base/half.h"
#include "tests/runtime/temporary_directory.h"

// A session with parameters of its own, and gradients that follow from tensor, step and
// micro-batch.
namespace terrace::test {

#define EXPECT_DONE(call) EXPECT_EQ(call, TERRACE_OK) << terrace_last_error()
#define ASSERT_DONE(call) ASSERT_EQ(call, TERRACE_OK) << terrace_last_error()

// Expects an error, and in its text a word that names the cause.
inline void expect_error(terrace_error given, terrace_error expected, const std::string& word) {
  EXPECT_EQ(given, expected) << terrace_error_name(given) << ": " << terrace_last_error();
  const std::string text = terrace_last_error();
  EXPECT_NE(text.find(word), std::string::npos) << text;
}

struct TestTensor {
  std::string name;
  std::int64_t elements = 0;
  std::int32_t dtype = TERRACE_DTYPE_FP32;
  std::int32_t group = 0;
};

inline const std::vector<TestTensor>& test_tensors() {
  static const std::vector<TestTensor> kTensors = {
      {"embedding", 5000, TERRACE_DTYPE_BF16, 0},
      // It has more than two chunks.
      {"wide", 2 * 1048576 + 777, TERRACE_DTYPE_BF16, 0},
      {"norm", 1, TERRACE_DTYPE_FP32, 1},
      {"head", 1048576, TERRACE_DTYPE_FP32, 1},
      {"half", 4097, TERRACE_DTYPE_FP16, 2},
      {"plain", 300, TERRACE_DTYPE_FP32, 2}};
  return kTensors;
}

// Returns a number in (-1, 1) that depends on all arguments.
inline float drawn(std::uint64_t a, std::uint64_t b, std::uint64_t i) {
  std::uint64_t x = (a * 0x9E3779B97F4A7C15U) ^ (b * 0xC2B2AE3D27D4EB4FU) ^ (i + 1);
  x ^= x >> 33;
  x *= 0xFF51AFD7ED558CCDU;
  x ^= x >> 33;
  return static_cast<float>(static_cast<double>(x >> 11) * 0x1p-52 - 1.0);
}

// A gradient in both forms in which it is given to a session.
struct TestGradient {
  std::vector<float> values;
  std::vector<Bf16> halves;
};

// Returns a gradient. Each is drawn only once, because with sanitizers drawing takes longer than
// the step.
inline TestGradient& test_gradient(std::size_t tensor, int step, int micro_batch) {
  static std::mutex mutex;
  static std::map<std::tuple<std::size_t, int, int>, TestGradient> drawn_ones;
  const std::scoped_lock lock(mutex);
  TestGradient& gradient = drawn_ones[{tensor, step, micro_batch}];
  if (!gradient.values.empty()) return gradient;
  const auto key = static_cast<std::uint64_t>(100 * step + micro_batch);
  for (std::int64_t i = 0; i < test_tensors()[tensor].elements; ++i) {
    // Both forms are exact in bf16, so that either may be given.
    const Bf16 half =
        to_bf16_nearest_even(0.01F * drawn(tensor + 7, key, static_cast<std::uint64_t>(i)));
    gradient.halves.push_back(half);
    gradient.values.push_back(to_float(half));
  }
  return gradient;
}

inline const std::vector<float>& gradient_of(std::size_t tensor, int step, int micro_batch) {
  return test_gradient(tensor, step, micro_batch).values;
}

inline terrace_buffer buffer_of(void* data, std::int64_t elements, std::int32_t dtype) {
  terrace_buffer buffer = {};
  buffer.data = data;
  buffer.element_count = elements;
  buffer.dtype = dtype;
  buffer.device_type = TERRACE_DEVICE_CPU;
  return buffer;
}

struct SessionChoice {
  std::int32_t tier = TERRACE_TIER_HOST;
  std::string nvme = {};
  std::uint64_t host_bytes = 0;
  std::int32_t threads = 2;
  std::int32_t engine = TERRACE_IO_AUTO;
  std::uint64_t nvme_budget = 0;
};

inline terrace_error make_session(const SessionChoice& choice, terrace_session** session) {
  const terrace_nvme_directory directory = {choice.nvme.c_str(), choice.nvme_budget};
  terrace_session_options options = {};
  options.struct_size = sizeof options;
  options.threads = choice.threads;
  options.host_memory_bytes = choice.host_bytes;
  options.state_tier = choice.tier;
  options.io_engine = choice.engine;
  options.nvme = &directory;
  options.nvme_count = choice.nvme.empty() ? 0 : 1;
  return terrace_session_create(&options, session);
}

inline terrace_error add_group(terrace_session* session, const char* rule, double weight_decay) {
  terrace_group_options options = {};
  options.struct_size = sizeof options;
  options.rule = rule;
  options.weight_decay = weight_decay;
  std::int32_t group = -1;
  return terrace_group_add(session, &options, &group);
}

// Returns options for a tensor of one dimension. The caller sets the pointer to its size.
inline terrace_tensor_options tensor_options(const char* name, const terrace_buffer& parameter) {
  terrace_tensor_options options = {};
  options.struct_size = sizeof options;
  options.name = name;
  options.parameter = parameter;
  options.dimension_count = 1;
  return options;
}

// Owns parameters and a prepared session that trains them.
class TrainedSession {
 public:
  explicit TrainedSession(const SessionChoice& choice = {}) {
    EXPECT_DONE(make_session(choice, &session_));
    EXPECT_DONE(add_group(session_, "adamw", 0.1));
    EXPECT_DONE(add_group(session_, "lion", 0));
    EXPECT_DONE(add_group(session_, "sgd", 0.01));
    for (std::size_t i = 0; i < test_tensors().size(); ++i) add_tensor(i);
    prepared_ = terrace_session_prepare(session_);
  }
  ~TrainedSession() { EXPECT_DONE(terrace_session_destroy(session_)); }
  TrainedSession(const TrainedSession&) = delete;
  TrainedSession& operator=(const TrainedSession&) = delete;

  terrace_session* get() const { return session_; }
  terrace_error prepared() const { return prepared_; }
  std::vector<std::byte>& bytes(std::size_t tensor) { return parameters_[tensor]; }
  const std::vector<std::vector<std::byte>>& parameters() const { return parameters_; }

  // Adds all gradients, every second one as bf16, except the gradient of tensor `without`.
  void add_gradients(int step, std::int32_t without = -1) {
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      for (std::size_t i = 0; i < parameters_.size(); ++i) {
        if (static_cast<std::int32_t>(i) == without) continue;
        // The session only reads them, but a buffer's data is not const.
        TestGradient& gradient = test_gradient(i, step, micro_batch);
        const std::int64_t count = test_tensors()[i].elements;
        const bool is_half = (i + static_cast<std::size_t>(micro_batch)) % 2 == 1;
        const terrace_buffer buffer =
            is_half ? buffer_of(gradient.halves.data(), count, TERRACE_DTYPE_BF16)
                    : buffer_of(gradient.values.data(), count, TERRACE_DTYPE_FP32);
        EXPECT_DONE(terrace_gradient_add(session_, static_cast<std::int32_t>(i), &buffer));
      }
    }
  }

  static terrace_step_options step_options(double max_grad_norm = 0.5) {
    static const double kRates[] = {1e-2, 1e-3, 2e-2};
    terrace_step_options options = {};
    options.struct_size = sizeof options;
    options.learning_rates = kRates;
    options.learning_rate_count = 3;
    options.max_grad_norm = max_grad_norm;
    options.gradient_scale = 0.5;
    return options;
  }

  terrace_step_result step(int number) {
    add_gradients(number);
    const terrace_step_options options = step_options();
    terrace_step_result result = {};
    result.struct_size = sizeof result;
    EXPECT_DONE(terrace_step(session_, &options, &result));
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
  void add_tensor(std::size_t i) {
    const TestTensor& tensor = test_tensors()[i];
    const auto count = static_cast<std::size_t>(tensor.elements);
    std::vector<std::byte>& bytes = parameters_.emplace_back();
    bytes.resize(count * (tensor.dtype == TERRACE_DTYPE_FP32 ? 4 : 2));
    for (std::size_t e = 0; e < count; ++e) {
      const float value = drawn(i, 0, e);
      if (tensor.dtype == TERRACE_DTYPE_FP32) {
        reinterpret_cast<float*>(bytes.data())[e] = value;
      } else if (tensor.dtype == TERRACE_DTYPE_BF16) {
        reinterpret_cast<Bf16*>(bytes.data())[e] = to_bf16_nearest_even(value);
      } else {
        reinterpret_cast<Fp16*>(bytes.data())[e] = to_fp16_nearest_even(value);
      }
    }
    terrace_tensor_options options =
        tensor_options(tensor.name.c_str(), buffer_of(bytes.data(), tensor.elements, tensor.dtype));
    options.shape = &tensor.elements;
    std::int32_t number = -1;
    EXPECT_DONE(terrace_tensor_add(session_, tensor.group, &options, &number));
    EXPECT_EQ(number, static_cast<std::int32_t>(i));
  }

  std::vector<std::vector<std::byte>> parameters_;
  terrace_session* session_ = nullptr;
  terrace_error prepared_ = TERRACE_ERROR_INTERNAL;
};

}  // namespace terrace::test
