#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "optim/update_rules.h"
#include "tests/capi/trained_session.h"

// Compares steps of a session with the same steps by the rules' definitions, element by element.
namespace terrace::test {
namespace {

constexpr int kSteps = 3;

// A whole tensor and its state.
struct DefinedTensor {
  std::vector<float> master;
  std::vector<float> slots[2];
  std::vector<float> gradient;
};

std::vector<std::byte> rounded(const std::vector<float>& master, std::int32_t dtype) {
  std::vector<std::byte> bytes(master.size() * (dtype == TERRACE_DTYPE_FP32 ? 4 : 2));
  for (std::size_t i = 0; i < master.size(); ++i) {
    if (dtype == TERRACE_DTYPE_FP32) {
      reinterpret_cast<float*>(bytes.data())[i] = master[i];
    } else if (dtype == TERRACE_DTYPE_BF16) {
      reinterpret_cast<Bf16*>(bytes.data())[i] = to_bf16_ties_away(master[i]);
    } else {
      reinterpret_cast<Fp16*>(bytes.data())[i] = to_fp16_nearest_even(master[i]);
    }
  }
  return bytes;
}

class DefinedTraining {
 public:
  explicit DefinedTraining(TrainedSession& begin) {
    for (std::size_t i = 0; i < test_tensors().size(); ++i) {
      const TestTensor& tensor = test_tensors()[i];
      const auto count = static_cast<std::size_t>(tensor.elements);
      DefinedTensor defined = {.master = std::vector<float>(count),
                               .slots = {std::vector<float>(count), std::vector<float>(count)},
                               .gradient = {}};
      for (std::size_t e = 0; e < count; ++e) {
        const std::byte* const at = begin.bytes(i).data();
        if (tensor.dtype == TERRACE_DTYPE_FP32) {
          defined.master[e] = reinterpret_cast<const float*>(at)[e];
        } else if (tensor.dtype == TERRACE_DTYPE_BF16) {
          defined.master[e] = to_float(reinterpret_cast<const Bf16*>(at)[e]);
        } else {
          defined.master[e] = to_float(reinterpret_cast<const Fp16*>(at)[e]);
        }
      }
      tensors_.push_back(std::move(defined));
    }
  }

  // Returns the norm before clipping.
  double step(int number) {
    double squares = 0;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].gradient = gradient_of(i, number, 0);
      const std::vector<float> second = gradient_of(i, number, 1);
      for (std::size_t e = 0; e < second.size(); ++e) tensors_[i].gradient[e] += second[e];
      for (const float g : tensors_[i].gradient) squares += double{g} * g;
    }
    return 0.5 * std::sqrt(squares);
  }

  void update(int number, double clip_coefficient) {
    const double rates[] = {1e-2, 1e-3, 2e-2};
    const char* const rules[] = {"adamw", "lion", "sgd"};
    const float decays[] = {0.1F, 0, 0.01F};
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const auto group = static_cast<std::size_t>(test_tensors()[i].group);
      const UpdateRule& rule = *find_update_rule(rules[group]);
      DefinedTensor& tensor = tensors_[i];
      ParameterUpdate update;
      update.options = standard_options(rule);
      update.options.weight_decay = decays[group];
      const StepScalars scalars = {
          .learning_rate = static_cast<float>(rates[group]),
          .gradient_scale = 0.5F * static_cast<float>(clip_coefficient),
          .of_rule = rule.step_scalars(update.options, number, rates[group]),
          .step = static_cast<std::uint32_t>(number)};
      update.scalars = &scalars;
      update.gradient = view(std::span(tensor.gradient));
      update.master = update.parameter = view(std::span(tensor.master));
      for (std::size_t slot = 0; slot < rule.slots.size(); ++slot) {
        update.slots.at(slot) = view(std::span(tensor.slots[slot]));
      }
      rule.reference(update);
    }
  }

  const std::vector<DefinedTensor>& tensors() const { return tensors_; }

 private:
  std::vector<DefinedTensor> tensors_;
};

void expect_defined(TrainedSession& session, const DefinedTraining& defined) {
  for (std::size_t i = 0; i < test_tensors().size(); ++i) {
    const TestTensor& tensor = test_tensors()[i];
    const DefinedTensor& expected = defined.tensors()[i];
    const auto number = static_cast<std::int32_t>(i);
    EXPECT_EQ(session.bytes(i), rounded(expected.master, tensor.dtype)) << tensor.name;
    EXPECT_EQ(session.state(number, "master"), expected.master) << tensor.name;
    const char* const first = tensor.group == 2 ? "momentum_buffer" : "exp_avg";
    EXPECT_EQ(session.state(number, first), expected.slots[0]) << tensor.name;
    if (tensor.group == 0) {
      EXPECT_EQ(session.state(number, "exp_avg_sq"), expected.slots[1]) << tensor.name;
    }
  }
}

// Returns whether a tier has state, by the ledger.
bool has_state_on(TrainedSession& session, const std::string& tier) {
  std::string text(4096, ' ');
  std::uint64_t size = 0;
  EXPECT_DONE(terrace_ledger_json(session.get(), text.data(), text.size(), &size));
  const std::size_t begin = text.find("\"" + tier + "\":{");
  return text.substr(begin, text.find('}', begin) - begin).find("optimizer_state") !=
         std::string::npos;
}

void expect_steps(const SessionChoice& choice) {
  TrainedSession session(choice);
  ASSERT_DONE(session.prepared());
  EXPECT_EQ(has_state_on(session, "host"), choice.tier != TERRACE_TIER_NVME);
  EXPECT_EQ(has_state_on(session, "nvme"), choice.tier != TERRACE_TIER_HOST);
  DefinedTraining defined(session);
  for (int number = 1; number <= kSteps; ++number) {
    const double norm = defined.step(number);
    const terrace_step_result result = session.step(number);
    EXPECT_EQ(result.step, number);
    EXPECT_EQ(result.skipped_tensors, 0U);
    // About 3.2 million squares are added in another order. Each addition errs by 2^-53 of the sum
    // at most, and the root halves that.
    EXPECT_NEAR(result.gradient_norm, norm, norm * 3.2e6 * 0x1p-53);
    EXPECT_LT(result.clip_coefficient, 1);
    EXPECT_NEAR(result.clip_coefficient, 0.5 / (norm + 1e-6), 1e-6);
    defined.update(number, result.clip_coefficient);
  }
  expect_defined(session, defined);
}

TEST(CapiStep, OnTheHost) { expect_steps({}); }

TEST(CapiStep, OnNvme) {
  const TemporaryDirectory drive;
  expect_steps({.tier = TERRACE_TIER_NVME, .nvme = drive.path()});
  EXPECT_TRUE(std::filesystem::is_empty(drive.path()));
}

TEST(CapiStep, OnNvmeByThreads) {
  const TemporaryDirectory drive;
  expect_steps({.tier = TERRACE_TIER_NVME, .nvme = drive.path(), .engine = TERRACE_IO_POSIX});
}

// The gradients take 12 MiB, a window of two slots 24 MiB, all state 28 MiB: a part of it is on
// the host.
TEST(CapiStep, OnBothTiersUnderTheLeastBudget) {
  const TemporaryDirectory drive;
  for (const std::uint64_t mib : {37, 38, 40}) {
    expect_steps({.tier = TERRACE_TIER_AUTO, .nvme = drive.path(), .host_bytes = mib << 20});
  }
}

TEST(CapiStep, WithOneThreadAndWithFive) {
  expect_steps({.threads = 1});
  expect_steps({.threads = 5});
}

// A read after the wait gives the values that the whole step leaves.
TEST(CapiStep, ParametersComeOneByOne) {
  const TemporaryDirectory drive;
  TrainedSession whole;
  TrainedSession parts({.tier = TERRACE_TIER_NVME, .nvme = drive.path()});
  for (int number = 1; number <= kSteps; ++number) {
    const terrace_step_result expected = whole.step(number);
    parts.add_gradients(number);
    const terrace_step_options options = TrainedSession::step_options();
    ASSERT_DONE(terrace_step_begin(parts.get(), &options));
    double norm = 0;
    EXPECT_DONE(terrace_wait_norm(parts.get(), &norm));
    EXPECT_EQ(norm, expected.gradient_norm);
    std::vector<std::thread> readers;
    for (const std::int32_t i : {5, 0, 1, 2, 3, 4}) {
      readers.emplace_back([&parts, &whole, i] {
        EXPECT_DONE(terrace_wait_parameter(parts.get(), i));
        const auto tensor = static_cast<std::size_t>(i);
        EXPECT_EQ(parts.bytes(tensor), whole.bytes(tensor)) << i;
      });
    }
    for (std::thread& reader : readers) reader.join();
    terrace_step_result result = {};
    result.struct_size = sizeof result;
    EXPECT_DONE(terrace_step_end(parts.get(), &result));
    EXPECT_EQ(result.gradient_norm, expected.gradient_norm);
    EXPECT_EQ(result.step, number);
  }
}

TEST(CapiStep, ClipsByANormThatIsKnown) {
  TrainedSession taken;
  TrainedSession known;
  TrainedSession twice;
  const terrace_step_result of_taken = taken.step(1);
  ASSERT_LT(of_taken.clip_coefficient, 1);
  terrace_step_options options = TrainedSession::step_options();
  const auto step_with = [&](TrainedSession& session, double norm) {
    session.add_gradients(1);
    options.known_norm = norm;
    terrace_step_result result = {};
    result.struct_size = sizeof result;
    EXPECT_DONE(terrace_step(session.get(), &options, &result));
    EXPECT_EQ(result.gradient_norm, norm);
    return result.clip_coefficient;
  };
  EXPECT_EQ(step_with(known, of_taken.gradient_norm), of_taken.clip_coefficient);
  EXPECT_EQ(known.parameters(), taken.parameters());
  EXPECT_NEAR(step_with(twice, 2 * of_taken.gradient_norm), of_taken.clip_coefficient / 2, 1e-6);
}

TEST(CapiStep, DestroyWaitsForAStep) {
  TrainedSession session;
  session.add_gradients(1);
  const terrace_step_options options = TrainedSession::step_options();
  ASSERT_DONE(terrace_step_begin(session.get(), &options));
}

TEST(CapiStep, SkipsTensorsWithoutGradient) {
  TrainedSession session;
  session.step(1);
  const std::vector<std::byte> before = session.bytes(1);
  const std::vector<float> moment = session.state(1, "exp_avg");
  session.add_gradients(2, 1);
  terrace_step_options options = TrainedSession::step_options();
  options.flags = TERRACE_STEP_SKIP_MISSING;
  terrace_step_result result = {};
  result.struct_size = sizeof result;
  ASSERT_DONE(terrace_step(session.get(), &options, &result));
  EXPECT_EQ(result.skipped_tensors, 1U);
  EXPECT_EQ(session.bytes(1), before);
  EXPECT_EQ(session.state(1, "exp_avg"), moment);
  EXPECT_NE(session.state(0, "exp_avg"), moment);
}

// An fp32 parameter is its own master: training goes on from the values that the caller writes. For
// a bf16 parameter it does so once they are adopted.
TEST(CapiStep, TrainsOnFromChangedParameters) {
  TrainedSession session;
  session.step(1);
  reinterpret_cast<float*>(session.bytes(5).data())[7] = 42;
  reinterpret_cast<Bf16*>(session.bytes(0).data())[7] = to_bf16_nearest_even(42);
  EXPECT_DONE(terrace_parameter_adopt(session.get(), 0));
  EXPECT_EQ(session.state(0, "master")[7], 42);
  EXPECT_EQ(session.state(5, "master")[7], 42);
  session.step(2);
  // A step of AdamW is about as large as its learning rate, and a step of SGD about as large as
  // that times the gradient.
  EXPECT_NEAR(session.state(0, "master")[7], 42, 0.1);
  EXPECT_NEAR(session.state(5, "master")[7], 42, 0.1);
  EXPECT_NE(session.state(0, "master")[7], 42);
}

TEST(CapiStep, TiedTensorsAreOne) {
  terrace_session* session = nullptr;
  ASSERT_DONE(make_session({}, &session));
  ASSERT_DONE(add_group(session, "sgd", 0));
  std::vector<float> values(10, 1.0F);
  const terrace_buffer parameter = buffer_of(values.data(), 10, TERRACE_DTYPE_FP32);
  terrace_tensor_options options = tensor_options("embedding", parameter);
  options.shape = &parameter.element_count;
  std::int32_t embedding = -1;
  std::int32_t head = -1;
  ASSERT_DONE(terrace_tensor_add(session, 0, &options, &embedding));
  options.name = "head";
  ASSERT_DONE(terrace_tensor_add(session, 0, &options, &head));
  EXPECT_EQ(head, embedding);
  ASSERT_DONE(terrace_session_prepare(session));
  std::vector<float> gradient(10, 0.25F);
  const terrace_buffer of = buffer_of(gradient.data(), 10, TERRACE_DTYPE_FP32);
  EXPECT_DONE(terrace_gradient_add(session, embedding, &of));
  EXPECT_DONE(terrace_gradient_add(session, head, &of));
  const double rate = 1;
  terrace_step_options step = {};
  step.struct_size = sizeof step;
  step.learning_rates = &rate;
  step.learning_rate_count = 1;
  EXPECT_DONE(terrace_step(session, &step, nullptr));
  EXPECT_EQ(values, std::vector<float>(10, 0.5F));
  EXPECT_DONE(terrace_session_destroy(session));
}

}  // namespace
}  // namespace terrace::test
