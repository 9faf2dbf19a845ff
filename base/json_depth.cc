#include "base/json_depth.h"

namespace terrace {

bool nests_deeper(std::string_view json, int levels) {
  int depth = 0;
  bool is_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (is_string) {
      if (c == '\\') ++i;  // the character after it does not end the string
      is_string = c != '"';
    } else if (c == '"') {
      is_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > levels) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace terrace
