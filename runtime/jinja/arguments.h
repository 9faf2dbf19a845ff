#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "runtime/jinja/value.h"

namespace terrace::jinja {

// Reads the arguments of a function that is built in. Errors name the function.
class ArgumentReader {
 public:
  using Names = std::initializer_list<std::string_view>;

  // `names` are the parameters' names, in their order; a parameter without one is "", and is passed
  // by its position only. Throws RenderError for an argument that is too many, has another name, or
  // is passed twice.
  ArgumentReader(std::string_view function, const Arguments& arguments, Names names);
  ArgumentReader(std::string_view function, const Arguments&& arguments, Names names) = delete;

  bool has(std::size_t index, std::string_view name) const;
  // Return the argument at `index` or of that name, or `otherwise` where none is passed. Throw
  // RenderError for one of another type.
  Value value(std::size_t index, std::string_view name, const Value& otherwise) const;
  std::string text(std::size_t index, std::string_view name, std::string otherwise) const;
  std::int64_t integer(std::size_t index, std::string_view name, std::int64_t otherwise) const;
  bool flag(std::size_t index, std::string_view name, bool otherwise) const;
  // Return the argument at `index`. Throw RenderError where none is passed.
  const Value& required(std::size_t index, std::string_view name) const;
  const std::string& required_text(std::size_t index, std::string_view name) const;

 private:
  [[noreturn]] void refuse(std::string_view name, const Value& value, const char* wanted) const;

  std::string_view function_;
  const Arguments& arguments_;
};

// Throws RenderError where there are arguments.
void expect_no_arguments(std::string_view function, const Arguments& arguments);

}  // namespace terrace::jinja
