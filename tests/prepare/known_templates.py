"""Chat templates in the shapes that public models have, short and by hand, with what a mask must find in them.

Each is used with the tokenizer of a golden folder, to which its control tokens are added.
"""
import json
from dataclasses import dataclass, field
from pathlib import Path

from support import GOLDEN
from tokenizers import AddedToken, Tokenizer

ALTERNATE = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}" \
            "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% endfor %}"


@dataclass(frozen=True)
class Known:
    """`end`: what ends an answer. `rejected`: the reasons for which all rows are left out, where no mask can be proven.
    `before`: what the model writes between the generation prompt and the answer's text."""

    template: str
    tokens: tuple[str, ...]
    end: str
    before: str = ""
    bos: str = ""
    eos: str = ""
    takes_system: bool = True
    rejected: frozenset[str] = field(default_factory=frozenset)

    def write(self, folder: Path) -> Path:
        """A model folder."""
        tokenizer = Tokenizer.from_file(str(GOLDEN / "qwen2.5" / "tokenizer.json"))
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in self.tokens])
        folder.mkdir()
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {"chat_template": self.template, "bos_token": self.bos or None, "eos_token": self.eos or self.end}
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        (folder / "generation_config.json").write_text(
            json.dumps({"eos_token_id": tokenizer.token_to_id(self.eos or self.end)}), encoding="utf-8")
        return folder


CHATML = ("<|im_start|>", "<|im_end|>")

KNOWN = {
    "gemma2": Known(
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        + ALTERNATE +
        "{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
        "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        ("<bos>", "<start_of_turn>", "<end_of_turn>"), "<end_of_turn>", bos="<bos>", takes_system=False),
    "gemma3": Known(
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\n\n' %}"
        "{% set loop_messages = messages[1:] %}{% else %}{% set first = '' %}{% set loop_messages = messages %}{% endif %}"
        "{% for m in loop_messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
        "{{ '<start_of_turn>' + role + '\n' + (first if loop.first else '') }}{{ m['content'] | trim }}{{ '<end_of_turn>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        ("<bos>", "<start_of_turn>", "<end_of_turn>"), "<end_of_turn>", bos="<bos>"),
    "phi4": Known(
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '<|im_sep|>' + m['content'] + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}",
        (*CHATML, "<|im_sep|>"), "<|im_end|>"),
    "phi35": Known(
        "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
        ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"), "<|end|>", eos="<|endoftext|>"),
    "mistral_v1": Known(
        "{{ bos_token }}" + ALTERNATE +
        "{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% else %}"
        "{{ m['content'] + eos_token + ' ' }}{% endif %}{% endfor %}",
        ("<s>", "</s>", "[INST]", "[/INST]"), "</s>", bos="<s>", takes_system=False),
    "mistral_v3_spaced": Known(
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + '[/INST]' }}"
        "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] | trim + eos_token }}{% else %}"
        "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}",
        ("<s>", "</s>", "[INST]", "[/INST]"), "</s>", before=" ", bos="<s>", takes_system=False),
    "mistral_v7": Known(
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
        "{{ '[SYSTEM_PROMPT]' + m['content'] + '[/SYSTEM_PROMPT]' }}{% elif m['role'] == 'user' %}"
        "{{ '[INST]' + m['content'] + '[/INST]' }}{% else %}{{ m['content'] + eos_token }}{% endif %}{% endfor %}",
        ("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), "</s>", bos="<s>"),
    "chatml_default_system": Known(
        "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}", CHATML, "<|im_end|>"),
    "llama31_tools": Known(
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}"
        "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
        "{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}{% if tools is not none %}{{ 'Environment: ipython\n' }}{% endif %}"
        "{{ 'Today Date: ' + strftime_now('%d %b %Y') + '\n\n' + system + '<|eot_id|>' }}"
        "{% for m in messages %}{% if m.role == 'tool' %}"
        "{{ '<|start_header_id|>ipython<|end_header_id|>\n\n' + m.content | tojson + '<|eot_id|>' }}"
        "{% elif m.tool_calls %}{% if m.tool_calls | length != 1 %}"
        "{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
        "{% set call = m.tool_calls[0].function %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
        "{{ '{\"name\": \"' + call.name + '\", \"parameters\": ' + call.arguments | tojson + '}<|eot_id|>' }}"
        "{% else %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), "<|eot_id|>", bos="<|begin_of_text|>"),
    "command_r": Known(
        "{{ bos_token }}{% for m in messages %}{% set who = {'user': '<|USER_TOKEN|>', 'assistant': '<|CHATBOT_TOKEN|>', "
        "'system': '<|SYSTEM_TOKEN|>'}[m.role] %}"
        "{{ '<|START_OF_TURN_TOKEN|>' + who + m.content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}",
        ("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>",
         "<|SYSTEM_TOKEN|>"), "<|END_OF_TURN_TOKEN|>", bos="<BOS_TOKEN>"),
    "zephyr": Known(
        "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + eos_token + '\n' }}"
        "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}",
        ("<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"), "</s>"),
    "tulu": Known(
        "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '<|assistant|>\n' + m['content'] + eos_token }}"
        "{% if not loop.last %}{{ '\n' }}{% endif %}{% else %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '\n' }}{% endif %}"
        "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}",
        ("<|endoftext|>",), "<|endoftext|>"),
    "vicuna": Known(
        "{% for m in messages %}{% if m['role'] == 'user' %}{{ 'USER: ' + m['content'] }}{% elif m['role'] == 'system' %}"
        "{{ m['content'] + '\n\n' }}{% else %}{{ ' ASSISTANT: ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ ' ASSISTANT:' }}{% endif %}",
        ("</s>",), "</s>", before=" "),
    "granite": Known(
        "{% for m in messages %}{{ '<|start_of_role|>' + m['role'] + '<|end_of_role|>' + m['content'] + '<|end_of_text|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}",
        ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"), "<|end_of_text|>"),
    "deepseek_v3": Known(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}"
        "{{ '<\uff5cUser\uff5c>' + m.content }}{% else %}{% set content = m.content.split('</think>') | last %}"
        "{{ '<\uff5cAssistant\uff5c>' + content + '<\uff5cend\u2581of\u2581sentence\uff5c>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<\uff5cAssistant\uff5c>' }}{% endif %}",
        ("<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<\uff5cUser\uff5c>",
         "<\uff5cAssistant\uff5c>"), "<\uff5cend\u2581of\u2581sentence\uff5c>", bos="<\uff5cbegin\u2581of\u2581sentence\uff5c>"),
    # The prompt opens a thought that no rendered chat shows.
    "deepseek_r1_distilled": Known(
        "{% for m in messages %}{% if m.role == 'user' %}{{ '<\uff5cUser\uff5c>' + m.content }}{% elif m.role == 'assistant' %}"
        "{{ '<\uff5cAssistant\uff5c>' + (m.content.split('</think>') | last) + '<\uff5cend\u2581of\u2581sentence\uff5c>' }}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<\uff5cAssistant\uff5c><think>\n' }}{% endif %}",
        ("<\uff5cend\u2581of\u2581sentence\uff5c>", "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"),
        "<\uff5cend\u2581of\u2581sentence\uff5c>", rejected=frozenset({"mask_unproven_answer_not_found"})),
    # Nothing ends an answer but the next turn.
    "glm4": Known(
        "[gMASK]<sop>{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
        ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"), "<|user|>",
        rejected=frozenset({"mask_unproven_end_of_turn_unknown"})),
    # Nothing ends an answer at all.
    "alpaca": Known(
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ '### Response:\n' + m.content + '\n\n' }}{% else %}"
        "{{ '### Instruction:\n' + m.content + '\n\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}",
        ("</s>",), "</s>", rejected=frozenset({"mask_unproven_end_of_turn_unknown"})),
    # The last answer of a chat ends otherwise than those before it.
    "harmony": Known(
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + ('<|return|>' if loop.last else '<|end|>') }}"
        "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}",
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"), "<|return|>",
        before="<|channel|>final<|message|>"),
    # A thinking-only model's: the prompt opens the thought.
    "qwen3_thinking": Known(
        "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
        "{% endfor %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' and "
        "loop.index0 > ns.last %}{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}"
        "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}", CHATML, "<|im_end|>"),
}
