"""Chat templates as models of Hugging Face have them."""

from __future__ import annotations

import pytest

from batchpool.core.errors import ConfigError, InvalidRequest
from batchpool.text import chat_template
from batchpool.text.chat_template import ChatTemplate
from tests.lazy import library

library("jinja2")
CHATML = """\
{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
INST = """\
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] | trim + ' [/INST]' }}
{% else %}
{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}
{% endif %}
{% endfor %}"""
HI = [{"role": "user", "content": "Hi <b>"}]


def test_messages_become_the_text_of_a_prompt() -> None:
    assert ChatTemplate(CHATML, {}).render(HI) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi <b><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_special_tokens_have_their_names_and_blocks_leave_no_lines() -> None:
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    chat = [*HI, {"role": "assistant", "content": "Yes"}, {"role": "user", "content": " On "}]
    expected = "<s>[INST] Hi <b> [/INST]\nYes</s>[INST] On [/INST]\n"
    assert ChatTemplate(INST, names).render(chat) == expected


def test_a_template_refuses_messages_in_its_own_words() -> None:
    with pytest.raises(InvalidRequest, match="refuses the messages: Conversation roles must"):
        ChatTemplate(INST, {"bos_token": "", "eos_token": ""}).render([HI[0], HI[0]])
    with pytest.raises(InvalidRequest, match="refuses the messages"):
        ChatTemplate("{{ messages[0]['content'] + 1 }}", {}).render(HI)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ tools is none and documents is none }}", "True"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "Hi <b>"}'),
        ("{{ messages | tojson(indent=1) | length > 40 }}", "True"),
        ("{% for m in [1, 2, 3] %}{{ m }}{% break %}{% endfor %}", "1"),
        ("{{ strftime_now('%Y') | int > 2000 }}", "True"),
        ("{{ missing_name }}", ""),
    ],
)
def test_templates_find_what_those_of_hugging_face_find(source: str, expected: str) -> None:
    assert ChatTemplate(source, {}).render(HI) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_a_template_stays_in_its_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequest):
        ChatTemplate(source, {}).render(HI)


def test_a_template_that_is_none_is_told_with_its_line() -> None:
    with pytest.raises(ConfigError, match="line 2"):
        ChatTemplate("a\n{% for %}", {})


JOINING = """\
{% set ns = namespace(system='') %}
{% for m in messages %}{% set ns.system = ns.system + m['content'] %}{% endfor %}
{{ ns.system }}"""
REPEATING = """\
{% for m in messages %}{% for n in messages %}{{ n['content'] }}{% endfor %}{% endfor %}"""


def chat_of(n: int, length: int) -> list[dict[str, str]]:
    return [{"role": "system", "content": "a" * length}] * n


@pytest.mark.parametrize("source", [JOINING, REPEATING], ids=["joining", "repeating"])
def test_messages_of_which_a_template_would_make_gigabytes_are_refused(source: str) -> None:
    """Their texts together are 6 MB, which is less than a body."""
    template = ChatTemplate(source, {})
    with pytest.raises(InvalidRequest, match=r"writes more than \d+ characters .* send fewer"):
        template.render(chat_of(1000, 6000))
    assert template.render(chat_of(10, 60)) == {JOINING: "a" * 600, REPEATING: "a" * 6000}[source]


def test_each_rendering_is_counted_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_MOST_JOINED_CHARACTERS", 100)
    template = ChatTemplate(JOINING, {})
    for _ in range(3):
        assert template.render(chat_of(1, 100)) == "a" * 100
    with pytest.raises(InvalidRequest, match="more than 100 characters"):
        template.render(chat_of(1, 101))


def test_plus_is_pythons_for_what_is_no_text() -> None:
    assert ChatTemplate("{{ 1 + 2 }}{{ ([1] + [2]) | length }}", {}).render(HI) == "32"
