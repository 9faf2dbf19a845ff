#include "runtime/jinja/template.h"

namespace terrace::jinja {

Template::Template(std::string_view source, const Limits& limits)
    : parsed_(parse_template(source)), limits_(limits) {}

Template::Rendered Template::render(const Mapping& values,
                                    std::chrono::system_clock::time_point now) const {
  Context context(values, limits_, now);
  run_block(parsed_.body, context);
  Rendered rendered;
  rendered.text = context.end_capture();
  for (const Mark& mark : context.marks()) {
    if (rendered.text.compare(mark.begin, mark.text.size(), mark.text) != 0) {
      throw RenderError(
          "it moves a text that it marks as generated, as in a macro or a {% set %} block");
    }
    rendered.generated.emplace_back(mark.begin, mark.begin + mark.text.size());
  }
  return rendered;
}

}  // namespace terrace::jinja
