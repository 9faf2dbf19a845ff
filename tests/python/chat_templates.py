"""Templates in the manner of families of models, each with and without marks of generated text.

`marked(name)` has {% generation %} around a turn with the token that ends it; `plain(name)` is the
same without these tags, and without the end of a line that jinja2 drops behind one.
"""

import re

# Turns with names, each ended by a token and an end of a line.
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

# Begins with a token, and trims what is said.
HEADERS = """\
{{- bos_token }}{% for message in messages %}
{{- '<|start|>' + message['role'] + '<|end|>\n\n' }}
{%- if message['role'] == 'assistant' %}{% generation %}{{ message['content'] | trim }}<|eot|>\
{% endgeneration %}{% else %}{{ message['content'] | trim }}<|eot|>{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %}"""

# Without names of turns, and the user goes first.
BRACKETS = """\
{{- bos_token }}{% for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('user and assistant take turns') }}{% endif %}
{%- if message.role == 'user' %}{{ '[INST] ' + message.content + ' [/INST]' }}
{%- else %}{% generation %}{{ ' ' + message.content + eos_token }}{% endgeneration %}{% endif %}
{%- endfor %}"""

# Leaves out of earlier turns what the assistant thought, and puts a thought into the last.
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
