"""Short forms of the chat templates that makers of models publish, with the turns to be found.

MAKERS has, for each, the template, the texts of its special tokens, and the conversations of
CONVERSATIONS that it takes, with the assistant's turns in them or the error that each gives.
"""

QUESTIONS = [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"},
             {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2"}]
SYSTEM = [{"role": "system", "content": "be brief"}, *QUESTIONS]


def call(name):
    return {"type": "function", "id": "call12345",
            "function": {"name": name, "arguments": {"at": "sea"}}}


# A call and its result before each answer. The second has content beside two calls.
TOOLS = [{"role": "user", "content": "q1"},
         {"role": "assistant", "content": "", "tool_calls": [call("tide")]},
         {"role": "tool", "content": "high", "tool_call_id": "call12345"},
         {"role": "assistant", "content": "a1"},
         {"role": "user", "content": "q2"},
         {"role": "assistant", "content": "Let me see.", "tool_calls": [call("tide"), call("moon")]},
         {"role": "tool", "content": "low", "tool_call_id": "call12345"},
         {"role": "tool", "content": "new", "tool_call_id": "call12345"},
         {"role": "assistant", "content": "a2"}]


# One call without content, as some templates take it.
ONE_CALL = [*TOOLS[:4], *QUESTIONS[2:]]
DECLARED = [{"type": "function", "function": {"name": name}} for name in ("tide", "moon")]

CONVERSATIONS = {"plain": {"messages": QUESTIONS}, "system": {"messages": SYSTEM},
                 "tools": {"messages": TOOLS, "tools": DECLARED},
                 "one_call": {"messages": ONE_CALL, "tools": DECLARED}}

CHATML = """\
{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] +
'<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- endif %}"""

# Ends the text with eos_token wherever no answer follows.
PHI3 = """\
{% for message in messages %}{% if message['role'] == 'system' %}
{{- '<|system|>\n' + message['content'] + '<|end|>\n' }}{% elif message['role'] == 'user' %}
{{- '<|user|>\n' + message['content'] + '<|end|>\n' }}{% elif message['role'] == 'assistant' %}
{{- '<|assistant|>\n' + message['content'] + '<|end|>\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"""

# Shows thoughts only behind the last question, and an empty one in the last turn.
QWEN3 = """\
{%- if tools %}{{ '<|im_start|>system\n' }}{%- if messages[0].role == 'system' %}
{{- messages[0].content + '\n\n' }}{%- endif %}{{ '# Tools\n<tools>' }}
{%- for tool in tools %}{{ '\n' }}{{ tool | tojson }}{%- endfor %}
{{- '\n</tools><|im_end|>\n' }}{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%- endif %}
{%- set ns = namespace(last_query_index=messages|length - 1, multi_step_tool=true) %}
{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}
{%- if ns.multi_step_tool and message.role == "user" %}
{%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{%- set content = message.content %}{%- set reasoning_content = '' %}
{%- if message.reasoning_content is string %}
{%- set reasoning_content = message.reasoning_content %}
{%- elif '</think>' in content %}
{%- set reasoning_content = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}
{%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
{{- '<|im_start|>assistant\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' }}
{{- content.lstrip('\n') }}
{%- else %}{{ '<|im_start|>assistant\n' + content }}{%- endif %}
{%- for tool_call in message.tool_calls or [] %}
{%- if (loop.first and content) or (not loop.first) %}{{ '\n' }}{%- endif %}
{%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
{{- '<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' }}
{{- tool_call.arguments | tojson }}{{ '}\n</tool_call>' }}{%- endfor %}{{ '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{%- endif %}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"""

# The generation prompt begins a thought, and turns in a conversation have none.
R1_DISTILL = """\
{%- set ns = namespace(system='') %}{%- for message in messages %}
{%- if message['role'] == 'system' %}{%- set ns.system = message['content'] %}{%- endif %}
{%- endfor %}{{ bos_token }}{{ ns.system }}{%- for message in messages %}
{%- if message['role'] == 'user' %}{{ '<|User|>' + message['content'] }}{%- endif %}
{%- if message['role'] == 'assistant' %}{%- set content = message['content'] %}
{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}
{{- '<|Assistant|>' + content + eos_token }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{%- endif %}"""

MISTRAL_V1 = """\
{{ bos_token }}{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate') }}{% endif %}
{%- if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"""

# Puts the system message into the last question, and the tools in front of it. An answer follows
# either with a space or as a call.
MISTRAL_V3 = """\
{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}
{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- set user_messages = loop_messages | selectattr('role', 'equalto', 'user') | list %}
{{- bos_token }}{%- for message in loop_messages %}{%- if message['role'] == 'user' %}
{%- if tools and message == user_messages[-1] %}
{{- '[AVAILABLE_TOOLS] ' }}{{ tools | tojson }}{{ '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- if message == user_messages[-1] and system_message is defined %}
{{- '[INST] ' + system_message + '\n\n' + message['content'] + '[/INST]' }}
{%- else %}{{ '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}
{%- elif message.tool_calls is defined and message.tool_calls is not none %}
{{- '[TOOL_CALLS] [' }}{%- for tool_call in message.tool_calls %}
{%- set out = tool_call.function | tojson %}{{ out[:-1] }}
{%- if not tool_call.id is defined or tool_call.id | length != 9 %}
{{- raise_exception('Tool call IDs should have length 9!') }}{%- endif %}
{{- ', "id": "' + tool_call.id + '"}' }}
{%- if not loop.last %}{{ ', ' }}{%- else %}{{ ']' + eos_token }}{%- endif %}{%- endfor %}
{%- elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}
{%- elif message['role'] == 'tool' %}
{{- '[TOOL_RESULTS] {"content": ' + message.content + '}[/TOOL_RESULTS]' }}
{%- endif %}{%- endfor %}"""
# The system message is shown only if a question is the last message.
MISTRAL_V3_LAST = MISTRAL_V3.replace("message == user_messages[-1] and system_message",
                                     "loop.last and system_message")

MISTRAL_V7 = """\
{{- bos_token }}{%- for message in messages %}{%- if message['role'] == 'user' %}
{{- '[INST]' + message['content'] + '[/INST]' }}{%- elif message['role'] == 'system' %}
{{- '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}
{%- elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}{%- endif %}
{%- endfor %}"""

GEMMA = """\
{{ bos_token }}{%- if messages[0]['role'] == 'system' %}
{%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
{%- set loop_messages = messages[1:] -%}{%- else -%}{%- set first_user_prefix = '' -%}
{%- set loop_messages = messages -%}{%- endif -%}{%- for message in loop_messages -%}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
{{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else '') }}
{{- message['content'] | trim }}{{ '<end_of_turn>\n' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"""

# Shows the tools in the first question, and a call in place of the content.
LLAMA3 = """\
{{- bos_token }}{%- set ns = namespace(system='', first=true) %}
{%- if messages[0]['role'] == 'system' %}{%- set ns.system = messages[0]['content'] | trim %}
{%- set messages = messages[1:] %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' + ns.system + '<|eot_id|>' }}
{%- for message in messages %}
{%- if not (message.role == 'tool' or 'tool_calls' in message) %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
{%- if tools and ns.first %}{%- set ns.first = false %}{%- for tool in tools %}
{{- tool | tojson(indent=4) }}{{ '\n\n' }}{%- endfor %}{%- endif %}
{{- message['content'] | trim + '<|eot_id|>' }}
{%- elif 'tool_calls' in message %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('only single tool-calls at once!') }}
{%- endif %}{%- set tool_call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + tool_call.name + '", ' }}
{{- '"parameters": ' }}{{ tool_call.arguments | tojson }}{{ '}' }}{{ '<|eot_id|>' }}
{%- elif message.role == 'tool' %}{{ '<|start_header_id|>ipython<|end_header_id|>\n\n' }}
{{- message.content | tojson }}{{ '<|eot_id|>' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""

ZEPHYR = """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

COMMAND_R = """\
{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}
{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + message['content'].strip() + '<|END_OF_TURN_TOKEN|>' }}
{%- elif message['role'] == 'user' %}
{{- '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + message['content'].strip() + '<|END_OF_TURN_TOKEN|>' }}
{%- else %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + message['content'].strip() +
'<|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"""

# Puts a system message of its own in front if there is none.
GRANITE = """\
{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}
{%- set loop_messages = messages[1:] %}{%- else %}{%- set system_message = 'You are Granite.' %}
{%- set loop_messages = messages %}{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\n' }}
{%- for message in loop_messages %}
{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] }}
{{- '<|end_of_text|>\n' }}{%- if loop.last and add_generation_prompt %}
{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}{%- endfor %}"""

# The generation prompt has an empty thought, and so have the turns, if thinking is off.
SMOLLM3 = """\
{%- set thinking = enable_thinking is not defined or enable_thinking %}
{{- '<|im_start|>system\n' }}{%- if messages[0].role == 'system' %}{{ messages[0].content }}
{%- endif %}{{ '<|im_end|>\n' }}{%- for message in messages %}
{%- if message.role == 'user' %}{{ '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\n' + ('' if thinking else '<think>\n\n</think>\n') }}
{{- message.content.lstrip('\n') + '<|im_end|>\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' + ('' if thinking else '<think>\n\n</think>\n') }}{%- endif %}"""

# No end of line behind the last turn.
OLMO = """\
{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}
{{- '<|system|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'user' %}
{{- '<|user|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'assistant' %}
{%- if not loop.last %}{{ '<|assistant|>\n' + message['content'] + eos_token + '\n' }}
{%- else %}{{ '<|assistant|>\n' + message['content'] + eos_token }}{% endif %}{% endif %}
{%- if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"""

# Turns have no token at their end.
FALCON = """\
{% for message in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}
{%- if message['role'] == 'system' %}{{ message['content'] }}
{%- elif message['role'] == 'user' %}{{ 'User: ' + message['content'] }}
{%- elif message['role'] == 'assistant' %}{{ 'Falcon: ' + message['content'] }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '\nFalcon:' }}{% endif %}"""

LLAMA2 = """\
{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}
{%- set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}
{%- set system_message = false %}{% endif %}{% for message in loop_messages %}
{%- if loop.index0 == 0 and system_message %}
{%- set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}
{%- else %}{% set content = message['content'] %}{% endif %}
{%- if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}
{%- endfor %}"""

# Names calls by their ids alone.
KIMI = """\
{%- if tools %}{{ '<|im_system|>tool_declare<|im_middle|>' }}{{ tools | tojson }}{{ '<|im_end|>' }}
{%- endif %}{% for message in messages %}{%- if message['role'] == 'user' %}
{{- '<|im_user|>user<|im_middle|>' }}{% elif message['role'] == 'assistant' %}
{{- '<|im_assistant|>assistant<|im_middle|>' }}{% else %}
{{- '<|im_system|>' + message['role'] + '<|im_middle|>' }}{% endif %}
{%- if message['role'] == 'assistant' and message.get('tool_calls') %}
{%- if message['content'] %}{{ message['content'] }}{% endif %}
{{- '<|tool_calls_section_begin|>' }}{%- for tool_call in message['tool_calls'] %}
{{- '<|tool_call_begin|>' + tool_call['id'] + '<|tool_call_argument_begin|>' }}
{{- tool_call['function']['arguments'] | tojson }}{{ '<|tool_call_end|>' }}{%- endfor %}
{{- '<|tool_calls_section_end|>' }}{% else %}{{ message['content'] }}{% endif %}
{{- '<|im_end|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}"""

# The last turn ends with another token than earlier ones.
HARMONY = """\
{% for message in messages %}{%- if message.role == 'assistant' %}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content }}
{{- '<|return|>' if loop.last else '<|end|>' }}{%- else %}
{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}{%- endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""

QWEN_CALL = '<tool_call>\n{"name": "%s", "arguments": {"at": "sea"}}\n</tool_call>'
MISTRAL_CALL = '{"name": "tide", "arguments": {"at": "sea"}, "id": "call12345"}'
LLAMA_CALL = '{"name": "tide", "parameters": {"at": "sea"}}<|eot_id|>'
KIMI_CALL = '<|tool_call_begin|>call12345<|tool_call_argument_begin|>{"at": "sea"}<|tool_call_end|>'


def both(one, other):
    """Returns the turns of conversations with and without a system message."""
    return {"plain": [one, other], "system": [one, other]}


def ending(end, before=""):
    return both(f"{before}a1{end}", f"{before}a2{end}")


# For each maker: the template, the special tokens that it needs, and the turns of each conversation.
MAKERS = {
    "chatml": (CHATML, ["<|im_end|>"], ending("<|im_end|>")),
    "phi3": (PHI3, ["<|end|>", "<|user|>", "<|assistant|>"], ending("<|end|>")),
    "qwen3": (QWEN3, ["<|im_start|>", "<|im_end|>"], {
        **both("a1<|im_end|>", "<think>\n\n</think>\n\na2<|im_end|>"),
        "tools": [QWEN_CALL % "tide" + "<|im_end|>", "a1<|im_end|>",
                  f"Let me see.\n{QWEN_CALL % 'tide'}\n{QWEN_CALL % 'moon'}<|im_end|>",
                  "<think>\n\n</think>\n\na2<|im_end|>"]}),
    "r1_distill": (R1_DISTILL, ["<|User|>", "<|Assistant|>"], ending("</s>")),
    "mistral_v1": (MISTRAL_V1, [], {"plain": [" a1</s>", " a2</s>"]}),
    "mistral_v3": (MISTRAL_V3, ["[INST]", "[/INST]"], ending("</s>", " ")),
    "mistral_v3_last": (MISTRAL_V3_LAST, ["[INST]", "[/INST]"], {
        "plain": [" a1</s>", " a2</s>"],
        "system": "message 0: the chat template does not show the system message",
        "one_call": [f"[TOOL_CALLS] [{MISTRAL_CALL}]</s>", " a1</s>", " a2</s>"]}),
    "mistral_v7": (MISTRAL_V7, ["[INST]", "[/INST]"], ending("</s>")),
    "gemma": (GEMMA, ["<start_of_turn>", "<end_of_turn>"], ending("<end_of_turn>")),
    "llama3": (LLAMA3, ["<|eot_id|>"], {
        **ending("<|eot_id|>"),
        "one_call": [LLAMA_CALL, "a1<|eot_id|>", "a2<|eot_id|>"]}),
    "zephyr": (ZEPHYR, [], ending("</s>")),
    "command_r": (COMMAND_R, ["<|END_OF_TURN_TOKEN|>"], ending("<|END_OF_TURN_TOKEN|>")),
    "granite": (GRANITE, ["<|end_of_text|>"], ending("<|end_of_text|>")),
    "smollm3": (SMOLLM3, ["<|im_end|>"], ending("<|im_end|>")),
    "olmo": (OLMO, [], ending("</s>")),
    "falcon": (FALCON, [], ending("", " ")),
    "llama2": (LLAMA2, ["[INST]"], ending(" </s>", " ")),
    "kimi": (KIMI, ["<|im_end|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"], {
        **ending("<|im_end|>"),
        "tools": [f"<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|><|im_end|>",
                  "a1<|im_end|>",
                  f"Let me see.<|tool_calls_section_begin|>{KIMI_CALL}{KIMI_CALL}"
                  "<|tool_calls_section_end|><|im_end|>", "a2<|im_end|>"]}),
    "harmony": (HARMONY, ["<|end|>", "<|return|>"], {
        "plain": "message 1: the end of its turn is not found, because the template renders it differently"}),
}
