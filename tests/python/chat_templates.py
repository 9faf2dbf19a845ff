"""Chat templates like those that families of models have, with and without marks of generated text.

`marked(name)` has {% generation %} around a turn and the token that ends it. `plain(name)` is the
same template without these tags, and without the end of line that jinja2 drops behind a tag.
"""

import re

# Each turn names its role, and ends with a token and an end of line.
CHATML = """\
{% if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}{% generation %}{{ message.content }}\
{% for call in message.tool_calls or [] %}
<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>{% endgeneration %}
{% else %}{{ message.content }}<|im_end|>{% endif %}

{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# The text begins with a token, and the content of messages is trimmed.
HEADERS = """\
{{- bos_token }}{% for message in messages %}
{{- '<|start|>' + message['role'] + '<|end|>\n\n' }}
{%- if message['role'] == 'assistant' %}{% generation %}{{ message['content'] | trim }}<|eot|>\
{% endgeneration %}{% else %}{{ message['content'] | trim }}<|eot|>{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %}"""

# Turns do not name their roles, and the user goes first.
BRACKETS = """\
{{- bos_token }}{% for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('user and assistant take turns') }}{% endif %}
{%- if message.role == 'user' %}{{ '[INST] ' + message.content + ' [/INST]' }}
{%- else %}{% generation %}{{ ' ' + message.content + eos_token }}{% endgeneration %}{% endif %}
{%- endfor %}"""

# Leaves the assistant's thoughts out of earlier turns, and puts one into the last turn.
THINKING = """\
{%- set last = namespace(user=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set last.user = loop.index0 %}\
{% endif %}{% endfor %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.role == 'assistant' %}{% generation %}{% if loop.index0 > last.user %}\
{{ '<think>\n' + (message.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}\
{{ message.content }}<|im_end|>{% endgeneration %}
{%- else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

TEMPLATES = {"chatml": CHATML, "headers": HEADERS, "brackets": BRACKETS, "thinking": THINKING}


def marked(name):
    return TEMPLATES[name]


def plain(name):
    return re.sub(r"\{% (end)?generation %\}\n?", "", TEMPLATES[name])
