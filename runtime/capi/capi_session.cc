#include <unistd.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "runtime/capi/capi_error.h"
#include "runtime/capi/capi_options.h"
#include "runtime/capi/terrace.h"
#include "runtime/config/version.h"
#include "runtime/session/parameter_session.h"
#include "runtime/session/session_error.h"

namespace terrace {
namespace {

class CallbackLog final : public Log {
 public:
  CallbackLog(terrace_log_callback callback, void* user) : callback_(callback), user_(user) {}

  void info(std::string_view line) override { tell(TERRACE_LOG_INFO, line); }
  void warning(std::string_view line) override { tell(TERRACE_LOG_WARNING, line); }

 private:
  void tell(std::int32_t level, std::string_view line) {
    if (callback_ != nullptr) callback_(level, std::string(line).c_str(), user_);
  }

  const terrace_log_callback callback_;
  void* const user_;
};

}  // namespace
}  // namespace terrace

struct terrace_session {  // NOLINT(readability-identifier-naming): C's
  terrace_session(terrace::SessionOptions options, std::unique_ptr<terrace::Log> log)
      : session(std::move(options), std::move(log)) {}

  const pid_t owner = getpid();
  std::mutex calls;  // one after the other
  terrace::ParameterSession session;
};

namespace terrace {
namespace {

// Runs the body, and makes an error of what it throws.
template <typename Body>
terrace_error guarded(Body body) noexcept {
  try {
    body();
    return TERRACE_OK;
  } catch (...) {
    return report_exception();
  }
}

terrace_error check_session(const terrace_session* session) noexcept {
  if (session == nullptr) {
    return report(TERRACE_ERROR_ARGUMENT, "session is NULL; make one by terrace_session_create()");
  }
  if (session->owner == getpid()) return TERRACE_OK;
  return report(TERRACE_ERROR_FORKED,
                "this process was forked from the one that made the session, and has none of its "
                "threads; start processes by \"spawn\", or make the session in this one");
}

// Runs the body when no other call of the session runs.
template <typename Body>
terrace_error with_session(terrace_session* session, Body body) noexcept {
  const terrace_error refused = check_session(session);
  if (refused != TERRACE_OK) return refused;
  return guarded([&] {
    const std::scoped_lock lock(session->calls);
    body(session->session);
  });
}

// For calls that wait beside others; the tensor is one of the session's.
UpdateThread& updates_for(terrace_session* session, std::int32_t tensor) {
  const std::scoped_lock lock(session->calls);
  UpdateThread& updates = session->session.updates();
  session->session.check_tensor(tensor);
  return updates;
}

// As much of the result as the caller's struct has.
void write_result(const SessionStepResult& result, terrace_step_result* out) {
  if (out == nullptr) return;
  out->skipped_tensors = result.skipped_tensors;
  out->step = result.step;
  out->gradient_norm = result.gradient_norm;
  out->clip_coefficient = result.clip_coefficient;
}

void check_result(const terrace_step_result* result) {
  if (result != nullptr) check_struct(result, sizeof(*result), "terrace_step_result");
}

TensorView fp32_view_of(const terrace_buffer& buffer, const char* name) {
  const TensorView view = view_of(buffer, name);
  if (view.dtype == DType::kF32) return view;
  throw SessionError(SessionProblem::kDType, std::string(name) + " is not fp32, as state is",
                     "set its dtype to TERRACE_DTYPE_FP32");
}

void write_text(const std::string& text, char* out, std::uint64_t capacity, std::uint64_t* size) {
  check_pointer(size, "size");
  *size = text.size() + 1;
  if (capacity == 0) return;
  check_pointer(out, "text");
  if (capacity < *size) {
    throw SessionError(SessionProblem::kArgument,
                       "the text has " + std::to_string(*size) + " bytes, and capacity is " +
                           std::to_string(capacity),
                       "ask for the size first");
  }
  std::memcpy(out, text.c_str(), text.size() + 1);
}

}  // namespace
}  // namespace terrace

using terrace::check_pointer;
using terrace::check_session;
using terrace::fp32_view_of;
using terrace::guarded;
using terrace::ParameterSession;
using terrace::with_session;

// What each function does, terrace.h says.

int32_t terrace_abi_version(void) { return TERRACE_ABI_VERSION; }

const char* terrace_version(void) { return terrace::terrace_version().data(); }

const char* terrace_last_error(void) { return terrace::last_report(); }

const char* terrace_error_name(int32_t error) { return terrace::name_of_error(error); }

terrace_error terrace_session_create(const terrace_session_options* options,
                                     terrace_session** session) {
  return guarded([&] {
    check_pointer(session, "session");
    const auto given = terrace::read_struct(options, "terrace_session_options");
    auto log = std::make_unique<terrace::CallbackLog>(given.log, given.log_user);
    *session = new terrace_session(terrace::session_options_of(given), std::move(log));
  });
}

terrace_error terrace_session_destroy(terrace_session* session) {
  if (session == nullptr) return TERRACE_OK;
  const terrace_error refused = check_session(session);
  if (refused != TERRACE_OK) return refused;
  return guarded([&] { delete session; });
}

terrace_error terrace_group_add(terrace_session* session, const terrace_group_options* options,
                                int32_t* group) {
  return with_session(session, [&](ParameterSession& own) {
    check_pointer(group, "group");
    const auto given = terrace::read_struct(options, "terrace_group_options");
    check_pointer(given.rule, "rule of terrace_group_options");
    if (given.hyperparameter_count > 0) {
      check_pointer(given.hyperparameters, "hyperparameters of terrace_group_options");
    }
    std::vector<terrace::NamedValue> values;
    for (uint32_t i = 0; i < given.hyperparameter_count; ++i) {
      check_pointer(given.hyperparameters[i].name, "name of a terrace_hyperparameter");
      values.emplace_back(given.hyperparameters[i].name, given.hyperparameters[i].value);
    }
    *group = own.add_group(given.rule, values, given.weight_decay);
  });
}

terrace_error terrace_tensor_add(terrace_session* session, int32_t group,
                                 const terrace_tensor_options* options, int32_t* tensor) {
  return with_session(session, [&](ParameterSession& own) {
    check_pointer(tensor, "tensor");
    const auto given = terrace::read_struct(options, "terrace_tensor_options");
    *tensor = own.add_tensor(terrace::tensor_of(given, group));
  });
}

terrace_error terrace_session_prepare(terrace_session* session) {
  return with_session(session, [](ParameterSession& own) { own.prepare(); });
}

terrace_error terrace_gradient_add(terrace_session* session, int32_t tensor,
                                   const terrace_buffer* gradient) {
  return with_session(session, [&](ParameterSession& own) {
    check_pointer(gradient, "gradient");
    own.add_gradient(tensor, terrace::view_of(*gradient, "a gradient"));
  });
}

terrace_error terrace_gradients_discard(terrace_session* session) {
  return with_session(session, [](ParameterSession& own) { own.discard_gradients(); });
}

terrace_error terrace_step_begin(terrace_session* session, const terrace_step_options* options) {
  return with_session(session, [&](ParameterSession& own) {
    own.begin_step(terrace::step_options_of(terrace::read_struct(options, "terrace_step_options")));
  });
}

terrace_error terrace_wait_parameter(terrace_session* session, int32_t tensor) {
  const terrace_error refused = check_session(session);
  if (refused != TERRACE_OK) return refused;
  return guarded([&] { terrace::updates_for(session, tensor).wait_for(tensor); });
}

terrace_error terrace_wait_norm(terrace_session* session, double* gradient_norm) {
  const terrace_error refused = check_session(session);
  if (refused != TERRACE_OK) return refused;
  return guarded([&] {
    check_pointer(gradient_norm, "gradient_norm");
    *gradient_norm = terrace::updates_for(session, 0).wait_for_norm();
  });
}

terrace_error terrace_step_end(terrace_session* session, terrace_step_result* result) {
  return with_session(session, [&](ParameterSession& own) {
    terrace::check_result(result);
    terrace::write_result(own.end_step(), result);
  });
}

terrace_error terrace_step(terrace_session* session, const terrace_step_options* options,
                           terrace_step_result* result) {
  return with_session(session, [&](ParameterSession& own) {
    terrace::check_result(result);
    own.begin_step(terrace::step_options_of(terrace::read_struct(options, "terrace_step_options")));
    terrace::write_result(own.end_step(), result);
  });
}

terrace_error terrace_step_count(terrace_session* session, int64_t* steps) {
  return with_session(session, [&](ParameterSession& own) {
    check_pointer(steps, "steps");
    *steps = own.steps();
  });
}

terrace_error terrace_parameter_adopt(terrace_session* session, int32_t tensor) {
  return with_session(session, [&](ParameterSession& own) { own.adopt_parameter(tensor); });
}

terrace_error terrace_state_read(terrace_session* session, int32_t tensor, const char* field,
                                 int64_t first_element, const terrace_buffer* out) {
  return with_session(session, [&](ParameterSession& own) {
    check_pointer(field, "field");
    check_pointer(out, "out");
    const terrace::TensorView view = fp32_view_of(*out, "out");
    own.read_state(tensor, field, first_element,
                   {view.as<float>(), static_cast<std::size_t>(view.elements())});
  });
}

terrace_error terrace_state_write(terrace_session* session, int32_t tensor, const char* field,
                                  int64_t first_element, const terrace_buffer* values) {
  return with_session(session, [&](ParameterSession& own) {
    check_pointer(field, "field");
    check_pointer(values, "values");
    const terrace::TensorView view = fp32_view_of(*values, "values");
    own.write_state(tensor, field, first_element,
                    {view.as<float>(), static_cast<std::size_t>(view.elements())});
  });
}

terrace_error terrace_tensor_updates(terrace_session* session, int32_t tensor, int64_t* updates) {
  return with_session(session, [&](ParameterSession& own) {
    check_pointer(updates, "updates");
    *updates = own.updates_of(tensor);
  });
}

terrace_error terrace_tensor_set_updates(terrace_session* session, int32_t tensor,
                                         int64_t updates) {
  return with_session(session, [&](ParameterSession& own) { own.set_updates_of(tensor, updates); });
}

terrace_error terrace_gradient_view(terrace_session* session, int32_t tensor,
                                    terrace_buffer* gradient) {
  return with_session(session, [&](ParameterSession& own) {
    check_pointer(gradient, "gradient");
    const std::span<float> sum = own.gradient_of(tensor);
    *gradient = {.data = sum.empty() ? nullptr : sum.data(),
                 .element_count = static_cast<int64_t>(sum.size()),
                 .dtype = TERRACE_DTYPE_FP32,
                 .device_type = TERRACE_DEVICE_CPU,
                 .device_id = 0,
                 .reserved = 0,
                 .stream = nullptr};
  });
}

terrace_error terrace_save(terrace_session* session, const char* directory) {
  return with_session(session, [&](ParameterSession& own) {
    check_pointer(directory, "directory");
    own.save(directory);
  });
}

terrace_error terrace_load(terrace_session* session, const char* directory) {
  return with_session(session, [&](ParameterSession& own) {
    check_pointer(directory, "directory");
    own.load(directory);
  });
}

terrace_error terrace_ledger_json(terrace_session* session, char* text, uint64_t capacity,
                                  uint64_t* size) {
  return with_session(session, [&](ParameterSession& own) {
    terrace::write_text(own.describe_ledger(), text, capacity, size);
  });
}

terrace_error terrace_metrics_json(terrace_session* session, char* text, uint64_t capacity,
                                   uint64_t* size) {
  return with_session(session, [&](ParameterSession& own) {
    terrace::write_text(own.describe_metrics(), text, capacity, size);
  });
}
