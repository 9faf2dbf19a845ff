#include "runtime/chat/built_in_templates.h"

#include <algorithm>
#include <array>

namespace terrace {
namespace {

struct BuiltIn {
  std::string_view name;
  const char* text;
};

// chatml: the form that OpenAI published in 2023. alpaca: the prompt of Stanford Alpaca
// (https://github.com/tatsu-lab/stanford_alpaca), here for several turns. Both mark what the
// assistant says.
constexpr auto kTemplates = std::to_array<BuiltIn>({
    {"chatml",
     R"({%- macro text_of(content) %}
{%- if content is string %}{{- content }}{%- else %}
{%- for part in content or [] %}{{- part.text }}{%- endfor %}
{%- endif %}
{%- endmacro %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}{{- text_of(message.content) + '<|im_end|>' }}{%- endgeneration %}
{%- else %}
{{- text_of(message.content) + '<|im_end|>' }}
{%- endif %}
{{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %})"},
    {"alpaca",
     R"({{- bos_token or '' }}
{%- for message in messages %}
{%- if message.role == 'system' %}
{{- message.content + '\n\n' }}
{%- elif message.role == 'user' %}
{{- '### Instruction:\n' + message.content + '\n\n' }}
{%- elif message.role == 'assistant' %}
{{- '### Response:\n' }}
{%- generation %}{{- message.content + (eos_token or '') }}{%- endgeneration %}
{{- '\n\n' }}
{%- else %}
{{- raise_exception('the template alpaca has no role ' + message.role) }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '### Response:\n' }}
{%- endif %})"},
});

}  // namespace

const char* find_built_in_template(std::string_view name) {
  const auto found = std::ranges::find(kTemplates, name, &BuiltIn::name);
  return found == kTemplates.end() ? nullptr : found->text;
}

std::string built_in_template_names() {
  std::string names;
  for (const BuiltIn& each : kTemplates) {
    if (!names.empty()) names += ", ";
    names += each.name;
  }
  return names;
}

}  // namespace terrace
