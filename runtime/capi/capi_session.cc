#include <unistd.h>

#include <memory>
#include <mutex>
#include <utility>

#include "runtime/capi/capi_call.h"
#include "runtime/capi/capi_error.h"
#include "runtime/capi/capi_options.h"
#include "runtime/capi/dlpack_lease.h"
#include "runtime/capi/terrace.h"
#include "runtime/config/version.h"
#include "runtime/session/parameter_session.h"

struct terrace_session {  // NOLINT(readability-identifier-naming): C's
  terrace_session(terrace::SessionOptions options, std::unique_ptr<terrace::Log> log)
      : session(std::move(options), std::move(log)) {}

  const pid_t owner = getpid();
  std::mutex calls;  // locked by all calls but the two that wait: they run one at a time
  terrace::ParameterSession session;
};

namespace terrace {
namespace {

terrace_error check_session(const terrace_session* session) noexcept {
  return check_owner(session, session == nullptr ? 0 : session->owner);
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

// Writes the result into the caller's struct.
void write_result(const SessionStepResult& result, terrace_step_result* out) {
  if (out == nullptr) return;
  out->skipped_tensors = result.skipped_tensors;
  out->step = result.step;
  out->gradient_norm = result.gradient_norm;
  out->clip_coefficient = result.clip_coefficient;
}

}  // namespace
}  // namespace terrace

using terrace::check_pointer;
using terrace::check_session;
using terrace::guarded;
using terrace::ParameterSession;
using terrace::with_session;

// terrace.h describes each function.

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
    const auto values = terrace::named_values(given.hyperparameters, given.hyperparameter_count);
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
    const terrace::GpuPlace place = terrace::place_of(*gradient, "a gradient");
    own.add_gradient(tensor, terrace::elements_of(*gradient, "a gradient"), place);
  });
}

terrace_error terrace_gradient_borrow(terrace_session* session, int32_t tensor,
                                      const terrace_buffer* gradient, int32_t* is_borrowed) {
  return with_session(session, [&](ParameterSession& own) {
    check_pointer(gradient, "gradient");
    check_pointer(is_borrowed, "is_borrowed");
    const terrace::GpuPlace place = terrace::place_of(*gradient, "a gradient");
    const terrace::TensorView elements = terrace::elements_of(*gradient, "a gradient");
    *is_borrowed = own.borrow_gradient(tensor, elements, place) ? 1 : 0;
  });
}

terrace_error terrace_gradient_complete(terrace_session* session, int32_t tensor) {
  return with_session(session, [&](ParameterSession& own) { own.complete_gradient(tensor); });
}

terrace_error terrace_gradient_square_sum(terrace_session* session, int32_t tensor, double* sum) {
  return with_session(session, [&](ParameterSession& own) {
    check_pointer(sum, "sum");
    *sum = own.square_sum_of(tensor);
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
  return guarded([&] { session->session.updates_for(tensor).wait_for(tensor); });
}

terrace_error terrace_wait_norm(terrace_session* session, double* gradient_norm) {
  const terrace_error refused = check_session(session);
  if (refused != TERRACE_OK) return refused;
  return guarded([&] {
    check_pointer(gradient_norm, "gradient_norm");
    *gradient_norm = session->session.updates_for(0).wait_for_norm();
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
    own.read_state(tensor, field, first_element, terrace::floats_of(*out, "out"));
  });
}

terrace_error terrace_state_write(terrace_session* session, int32_t tensor, const char* field,
                                  int64_t first_element, const terrace_buffer* values) {
  return with_session(session, [&](ParameterSession& own) {
    check_pointer(field, "field");
    check_pointer(values, "values");
    own.write_state(tensor, field, first_element, terrace::floats_of(*values, "values"));
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

terrace_error terrace_gradient_lease(terrace_session* session, int32_t tensor,
                                     struct DLManagedTensorVersioned** lease) {
  return with_session(session, [&](ParameterSession& own) {
    check_pointer(lease, "lease");
    auto loan = own.lend_gradient(tensor);
    *lease = loan == nullptr ? nullptr : terrace::make_dlpack_lease(std::move(loan));
  });
}

terrace_error terrace_lease_unversioned(struct DLManagedTensorVersioned* lease,
                                        struct DLManagedTensor** unversioned) {
  return guarded([&] {
    check_pointer(lease, "lease");
    check_pointer(unversioned, "unversioned");
    *unversioned = terrace::unversioned(lease);
  });
}

void terrace_capsule_end(void* capsule) {
  if (capsule != nullptr) terrace::end_capsule(capsule);
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

terrace_error terrace_pause(terrace_session* session, const char* directory) {
  return with_session(session, [&](ParameterSession& own) {
    own.pause(directory == nullptr ? std::string() : std::string(directory));
  });
}

terrace_error terrace_resume(terrace_session* session) {
  return with_session(session, [](ParameterSession& own) { own.resume(); });
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
