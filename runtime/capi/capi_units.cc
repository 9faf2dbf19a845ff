#include <unistd.h>

#include <memory>
#include <mutex>
#include <utility>

#include "optim/grad_norm.h"
#include "runtime/capi/capi_call.h"
#include "runtime/capi/capi_options.h"
#include "runtime/capi/dlpack_lease.h"
#include "runtime/capi/terrace.h"
#include "runtime/session/session_error.h"
#include "runtime/session/unit_session.h"

struct terrace_units {  // NOLINT(readability-identifier-naming): C's
  terrace_units(terrace::UnitSessionOptions options, std::unique_ptr<terrace::Log> log)
      : max_grad_norm(options.max_grad_norm), units(std::move(options), std::move(log)) {}

  const pid_t owner = getpid();
  const double max_grad_norm;
  std::mutex calls;  // locked by each call: they run one at a time
  terrace::UnitSession units;
};

namespace terrace {
namespace {

// Runs the body when no other call of the session runs.
template <typename Body>
terrace_error with_units(terrace_units* units, Body body) noexcept {
  const terrace_error refused = check_owner(units, units == nullptr ? 0 : units->owner);
  if (refused != TERRACE_OK) return refused;
  return guarded([&] {
    const std::scoped_lock lock(units->calls);
    body(units->units);
  });
}

void fill_from(UnitSession& units, std::int64_t steps, terrace_state_source source, void* user) {
  units.fill(steps,
             [&](StateField field, std::int32_t unit, std::int64_t begin, std::span<float> out) {
               const std::string name(units.name_of(field));
               const terrace_state_range range = {
                   unit, 0, name.c_str(), begin, static_cast<std::int64_t>(out.size()), out.data()};
               if (source(user, &range) == 0) return;
               throw SessionError(
                   SessionProblem::kArgument,
                   "the source of the state refuses " + name + " of unit " + units.unit(unit).name,
                   "make another session");
             });
}

void read_field(UnitSession& units, std::int32_t unit, std::string_view field, std::int64_t begin,
                const terrace_buffer& out) {
  const bool is_parameter = field == "parameter";
  if (!is_parameter || units.compute_type() == DType::kF32) {
    return units.read_state(unit, is_parameter ? "master" : field, begin, floats_of(out, "out"));
  }
  const TensorView elements = view_of(out, "out");
  if (elements.dtype != units.compute_type()) {
    throw SessionError(SessionProblem::kDType,
                       "parameters are read as another type, but the units keep them in bf16",
                       "set the dtype of out to TERRACE_DTYPE_BF16");
  }
  units.read_parameters(unit, begin,
                        {elements.as<Bf16>(), static_cast<std::size_t>(elements.elements())});
}

}  // namespace
}  // namespace terrace

using terrace::check_pointer;
using terrace::guarded;
using terrace::UnitSession;
using terrace::with_units;

// terrace.h describes each function.

terrace_error terrace_units_create(const terrace_units_options* options, terrace_units** units) {
  return guarded([&] {
    check_pointer(units, "units");
    const auto given = terrace::read_struct(options, "terrace_units_options");
    auto log = std::make_unique<terrace::CallbackLog>(given.log, given.log_user);
    *units = new terrace_units(terrace::units_options_of(given), std::move(log));
  });
}

terrace_error terrace_units_destroy(terrace_units* units) {
  if (units == nullptr) return TERRACE_OK;
  const terrace_error refused = terrace::check_owner(units, units->owner);
  if (refused != TERRACE_OK) return refused;
  return guarded([&] { delete units; });
}

terrace_error terrace_unit_add(terrace_units* units, const terrace_unit_options* options,
                               int32_t* unit) {
  return with_units(units, [&](UnitSession& own) {
    check_pointer(unit, "unit");
    const auto given = terrace::read_struct(options, "terrace_unit_options");
    *unit = own.add_unit(terrace::unit_of(given));
  });
}

terrace_error terrace_units_record(terrace_units* units, int32_t unit, int32_t pass,
                                   int32_t micro_batch) {
  return with_units(
      units, [&](UnitSession& own) { own.record(terrace::task_of(unit, pass, micro_batch)); });
}

terrace_error terrace_units_prepare(terrace_units* units) {
  return with_units(units, [](UnitSession& own) { own.prepare(); });
}

terrace_error terrace_units_fill(terrace_units* units, int64_t steps, terrace_state_source source,
                                 void* user) {
  return with_units(units, [&](UnitSession& own) {
    if (source == nullptr) check_pointer(nullptr, "source");
    terrace::fill_from(own, steps, source, user);
  });
}

terrace_error terrace_units_step_begin(terrace_units* units, double learning_rate) {
  return with_units(units, [&](UnitSession& own) { own.begin_step(learning_rate); });
}

terrace_error terrace_unit_acquire(terrace_units* units, int32_t unit, int32_t pass,
                                   int32_t micro_batch, terrace_unit_memory* memory) {
  return with_units(units, [&](UnitSession& own) {
    check_pointer(memory, "memory");
    terrace::check_struct(memory, sizeof(*memory), "terrace_unit_memory");
    const terrace::AcquiredUnit acquired = own.acquire(terrace::task_of(unit, pass, micro_batch));
    memory->dtype =
        own.compute_type() == terrace::DType::kF32 ? TERRACE_DTYPE_FP32 : TERRACE_DTYPE_BF16;
    memory->parameters = acquired.parameters;
    memory->gradient = acquired.gradient;
    memory->saved = acquired.saved;
    memory->adds_gradient = acquired.adds_gradient ? 1 : 0;
  });
}

terrace_error terrace_unit_release(terrace_units* units, int32_t unit) {
  return with_units(units, [&](UnitSession& own) { own.release(unit); });
}

terrace_error terrace_unit_lease(terrace_units* units, int32_t unit, int32_t part,
                                 struct DLManagedTensorVersioned** lease) {
  return with_units(units, [&](UnitSession& own) {
    check_pointer(lease, "lease");
    if (part != TERRACE_PART_PARAMETERS && part != TERRACE_PART_GRADIENT) {
      throw terrace::SessionError(terrace::SessionProblem::kArgument,
                                  "a unit does not have the part " + std::to_string(part),
                                  "give a value of terrace_unit_part");
    }
    auto loan = own.lend(unit, part == TERRACE_PART_GRADIENT ? terrace::Role::kGradient
                                                             : terrace::Role::kParameters);
    *lease = loan == nullptr ? nullptr : terrace::make_dlpack_lease(std::move(loan));
  });
}

terrace_error terrace_units_step_abandon(terrace_units* units, terrace_gradient_sink sink,
                                         void* user) {
  return with_units(units, [&](UnitSession& own) {
    if (sink == nullptr) check_pointer(nullptr, "sink");
    own.abandon_step([=](std::int32_t unit, std::int64_t begin, std::span<const float> gradient) {
      sink(user, unit, begin, static_cast<std::int64_t>(gradient.size()), gradient.data());
    });
  });
}

terrace_error terrace_units_step_end(terrace_units* units, terrace_step_result* result) {
  return with_units(units, [&](UnitSession& own) {
    terrace::check_result(result);
    const terrace::StepResult step = own.end_step();
    if (result == nullptr) return;
    result->skipped_tensors = 0;
    result->step = own.steps();
    result->gradient_norm = step.gradient_norm;
    result->clip_coefficient =
        step.was_skipped ? 0 : terrace::clip_coefficient(step.gradient_norm, units->max_grad_norm);
  });
}

terrace_error terrace_units_state_read(terrace_units* units, int32_t unit, const char* field,
                                       int64_t first_element, const terrace_buffer* out) {
  return with_units(units, [&](UnitSession& own) {
    check_pointer(field, "field");
    check_pointer(out, "out");
    terrace::read_field(own, unit, field, first_element, *out);
  });
}

terrace_error terrace_units_pause(terrace_units* units, const char* directory) {
  return with_units(units, [&](UnitSession& own) {
    own.pause(directory == nullptr ? std::string() : std::string(directory));
  });
}

terrace_error terrace_units_resume(terrace_units* units) {
  return with_units(units, [](UnitSession& own) { own.resume(); });
}

terrace_error terrace_units_ledger_json(terrace_units* units, char* text, uint64_t capacity,
                                        uint64_t* size) {
  return with_units(units, [&](UnitSession& own) {
    terrace::write_text(own.describe_ledger(), text, capacity, size);
  });
}
