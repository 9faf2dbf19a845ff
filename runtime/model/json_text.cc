#include "runtime/model/json_text.h"

#include <array>

namespace terrace {
namespace {

struct NonFinite {
  std::string_view number;
  std::string_view quoted;  // with a control character, which JSON writes escaped
};
constexpr std::array<NonFinite, 3> kNonFinite = {{{"-Infinity", R"("\u0001-Infinity")"},
                                                  {"Infinity", R"("\u0001Infinity")"},
                                                  {"NaN", R"("\u0001NaN")"}}};

}  // namespace

std::string quote_non_finite(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  bool is_string = false;
  for (std::size_t at = 0; at < json.size(); ++at) {
    const char c = json[at];
    if (c == '"') is_string = !is_string;
    if (is_string && c == '\\' && at + 1 < json.size()) {
      text += c;
      text += json[++at];
      continue;
    }
    const NonFinite* found = nullptr;
    for (const NonFinite& each : kNonFinite) {
      if (!is_string && found == nullptr && json.substr(at).starts_with(each.number)) found = &each;
    }
    if (found == nullptr) {
      text += c;
      continue;
    }
    text += found->quoted;
    at += found->number.size() - 1;
  }
  return text;
}

std::string unquote_non_finite(std::string_view json) {
  std::string text(json);
  for (const NonFinite& each : kNonFinite) {
    for (std::size_t at = text.find(each.quoted); at != std::string::npos;
         at = text.find(each.quoted, at)) {
      text.replace(at, each.quoted.size(), each.number);
    }
  }
  return text;
}

}  // namespace terrace
