#include "runtime/jinja/context.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/jinja/errors.h"
#include "runtime/jinja/globals.h"

namespace terrace::jinja {

const Value* Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer_.get()) {
    const auto found = scope->values_.find(name);
    if (found != scope->values_.end()) return &found->second;
  }
  return nullptr;
}

Context::Context(const Mapping& values, const Limits& limits,
                 std::chrono::system_clock::time_point now)
    : limits_(limits), scope_(std::make_shared<Scope>(nullptr)), captures_(1), now_(now) {
  add_globals(*this);
  scope_ = std::make_shared<Scope>(scope_);
  for (const auto& [key, value] : values.entries()) {
    if (key.is_text()) scope_->set(key.text(), value);
  }
}

void Context::spend(std::uint64_t work) {
  work_ += work;
  if (work_ <= limits_.work) return;
  throw RenderError("it takes more work than a chat template may take");
}

void Context::check_text(std::size_t bytes) const {
  if (bytes <= limits_.text_bytes) return;
  throw RenderError(fmt::format("it makes a text of more than {} bytes", limits_.text_bytes));
}

void Context::spend_text(std::size_t bytes) {
  constexpr std::size_t kBytesOfWork = 16;
  check_text(bytes);
  spend(bytes / kBytesOfWork + 1);
}

Value Context::find(const std::string& name) const {
  const Value* const value = scope_->find(name);
  return value != nullptr ? *value : Value(Undefined{fmt::format("'{}' is undefined", name)});
}

void Context::print(std::string_view text) {
  spend_text(text.size());
  captures_.back() += text;
  check_text(captures_.back().size());
}

std::string Context::end_capture() {
  std::string text = std::move(captures_.back());
  captures_.pop_back();
  return text;
}

Context::Level::Level(Context& context) : context_(context) {
  context.spend(1);
  if (++context.level_ <= context.limits_.depth) return;
  --context.level_;
  throw RenderError(
      fmt::format("its parts are evaluated more than {} levels deep", context.limits_.depth));
}

}  // namespace terrace::jinja
