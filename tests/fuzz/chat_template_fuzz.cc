#include <algorithm>
#include <string>
#include <string_view>

#include "runtime/chat/conversation.h"
#include "runtime/jinja/json_value.h"
#include "runtime/jinja/python_text.h"
#include "runtime/jinja/template.h"
#include "runtime/tokenizer/utf8.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

constexpr std::string_view kValues =
    R"({"s": "a \u00e9\nb", "n": 3, "f": -1.5, "xs": [3, 1, 2], "ys": ["b", "a"], "d": {"k": [1]},
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"}],
        "tools": null, "add_generation_prompt": true, "bos_token": "<s>"})";

// Small enough for an input to take a few milliseconds.
constexpr terrace::jinja::Limits kLimits = {.work = 20'000, .depth = 600, .text_bytes = 100'000};

void render(std::string_view source, const terrace::jinja::Mapping& values) {
  using namespace terrace;
  try {
    const jinja::Template made(source, kLimits);
    const jinja::Template::Rendered rendered = made.render(values);
    const std::string& text = rendered.text;
    fuzz::expect(text.size() <= kLimits.text_bytes, "the text is within its limit");
    fuzz::expect(valid_utf8_prefix(text) == text.size(), "the text is UTF-8");
    for (const auto& [begin, end] : rendered.generated) {
      fuzz::expect(begin <= end && end <= text.size(), "a mark is within the text");
    }
    fuzz::expect(rendered.generated.empty() || made.marks_generated(),
                 "only generation blocks make marks");
  } catch (const jinja::SyntaxError& error) {
    fuzz::expect(error.line() >= 1, "lines are counted from 1");
  } catch (const jinja::RenderError&) {
  }
}

}  // namespace

// Renders bytes as a template. A line of JSON may follow behind a byte 0: the values, or a
// conversation.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace terrace;
  static const jinja::Value values = jinja::parse_json_value(kValues, "values");
  const std::string text = replace_invalid_utf8(fuzz::text_of(data, size));
  const std::size_t end = std::min(text.find('\0'), text.size());
  const std::string_view source = std::string_view(text).substr(0, end);
  if (end == text.size()) {
    render(source, values.mapping());
    return 0;
  }
  fuzz::may_refuse([&] {
    const jinja::Value row = jinja::parse_json_value(std::string_view(text).substr(end + 1), "row");
    if (!row.is_mapping()) return;
    if (!is_conversation(row.mapping())) return render(source, row.mapping());
    const Conversation conversation = read_conversation(row.mapping(), "row");
    fuzz::expect(conversation.trained.size() == conversation.messages.size(),
                 "each message is trained on or not");
    jinja::Mapping made = conversation.variables;
    made.set("messages", jinja::Value::list(conversation.messages));
    made.set("tools", conversation.tools);
    render(source, made);
  });
  return 0;
}
