#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/jinja/context.h"
#include "runtime/jinja/errors.h"
#include "runtime/jinja/parser.h"
#include "runtime/jinja/value.h"

namespace terrace::jinja {

// A template of the language of Jinja2 3.1 (https://jinja.palletsprojects.com/en/stable/templates),
// as far as chat templates use it, in the environment that transformers renders them in: its
// ImmutableSandboxedEnvironment with trim_blocks, lstrip_blocks, loop controls, raise_exception(),
// strftime_now() and {% generation %} (transformers, utils/chat_template_utils.py).
// docs/conversations.md lists what is not there. Thread-safe.
class Template {
 public:
  // Throws SyntaxError.
  explicit Template(std::string_view source, const Limits& limits = {});

  struct Rendered {
    std::string text;
    // The begin and the end of each text that a {% generation %} block has printed, in bytes.
    std::vector<std::pair<std::size_t, std::size_t>> generated;
  };
  // Renders the template with these variables. `now` is the time that strftime_now() tells. Throws
  // RenderError: the template refuses the values, goes over a limit, or moves a text that it marks
  // as generated, as in a macro.
  Rendered render(const Mapping& values, std::chrono::system_clock::time_point now =
                                             std::chrono::system_clock::now()) const;
  // Returns whether the template has {% generation %} blocks.
  bool marks_generated() const { return parsed_.has_generation; }

 private:
  ParsedTemplate parsed_;
  Limits limits_;
};

}  // namespace terrace::jinja
