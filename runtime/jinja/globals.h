#pragma once

#include "runtime/jinja/context.h"

namespace terrace::jinja {

// Adds the functions that every template has: those of Jinja2 (range, dict, namespace) and those
// that transformers adds (raise_exception, strftime_now).
void add_globals(Context& context);

}  // namespace terrace::jinja
