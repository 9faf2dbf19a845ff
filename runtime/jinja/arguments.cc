#include "runtime/jinja/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/jinja/errors.h"
#include "runtime/jinja/operators.h"

namespace terrace::jinja {

ArgumentReader::ArgumentReader(std::string_view function, const Arguments& arguments, Names names)
    : function_(function), arguments_(arguments) {
  const std::size_t count = arguments.positional.size();
  if (count > names.size()) {
    throw RenderError(fmt::format("{} takes at most {} arguments, but {} are passed", function,
                                  names.size(), count));
  }
  for (const auto& [name, value] : arguments.named) {
    const auto* const found = std::ranges::find(names, name);
    if (found == names.end() || name.empty()) {
      throw RenderError(fmt::format("{} takes no argument {}", function, name));
    }
    if (static_cast<std::size_t>(found - names.begin()) < count) {
      throw RenderError(fmt::format("the argument {} of {} is passed twice", name, function));
    }
  }
}

void expect_no_arguments(std::string_view function, const Arguments& arguments) {
  const ArgumentReader reader(function, arguments, {});
}

bool ArgumentReader::has(std::size_t index, std::string_view name) const {
  return arguments_.find(index, name) != nullptr;
}

Value ArgumentReader::value(std::size_t index, std::string_view name,
                            const Value& otherwise) const {
  const Value* const found = arguments_.find(index, name);
  return found != nullptr ? *found : otherwise;
}

std::string ArgumentReader::text(std::size_t index, std::string_view name,
                                 std::string otherwise) const {
  const Value* const found = arguments_.find(index, name);
  if (found == nullptr) return otherwise;
  if (!found->is_text()) refuse(name, *found, "a text");
  return found->text();
}

std::int64_t ArgumentReader::integer(std::size_t index, std::string_view name,
                                     std::int64_t otherwise) const {
  const Value* const found = arguments_.find(index, name);
  if (found == nullptr) return otherwise;
  if (!found->is_integer() && !found->is_bool()) refuse(name, *found, "a whole number");
  return found->integer();
}

bool ArgumentReader::flag(std::size_t index, std::string_view name, bool otherwise) const {
  const Value* const found = arguments_.find(index, name);
  return found != nullptr ? found->is_true() : otherwise;
}

const Value& ArgumentReader::required(std::size_t index, std::string_view name) const {
  const Value* const found = arguments_.find(index, name);
  if (found != nullptr) return *found;
  throw RenderError(fmt::format("{} needs the argument {}", function_, name));
}

const std::string& ArgumentReader::required_text(std::size_t index, std::string_view name) const {
  const Value& value = required(index, name);
  if (!value.is_text()) refuse(name, value, "a text");
  return value.text();
}

void ArgumentReader::refuse(std::string_view name, const Value& value, const char* wanted) const {
  refuse_undefined(value);
  throw RenderError(fmt::format("the argument {} of {} is of type {}, but must be {}", name,
                                function_, value.type_name(), wanted));
}

}  // namespace terrace::jinja
