"""The template environment behaves as transformers' does."""
import datetime
import json
import unittest

from support import GOLDEN, QUESTION, Scratch, user

from percheron_prepare.chat_template import ChatTemplate, TemplateMissing, TemplateRefused, load_template
from percheron_prepare.model import load_model

NOW = datetime.datetime(2024, 7, 26)


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}, NOW).render(QUESTION, variables=variables).text


class ChatTemplateTest(unittest.TestCase):
    def test_blocks_swallow_their_line(self) -> None:
        self.assertEqual(render("{% if true %}\n  {% if true %}\nx\n{% endif %}\n{% endif %}\n"), "x\n")

    def test_tojson_keeps_order_and_characters(self) -> None:
        self.assertEqual(render("{{ v | tojson }}", v={"b": "<é>", "a": 1}), '{"b": "<é>", "a": 1}')
        self.assertEqual(render("{{ v | tojson(indent=1) }}", v={"b": 1}), '{\n "b": 1\n}')

    def test_loop_controls_special_tokens_and_clock_are_there(self) -> None:
        source = "{{ bos_token }}{% for m in messages %}{{ m.role }}{% break %}{% endfor %}" \
                 "{{ strftime_now('%d %b %Y') }}"
        self.assertEqual(render(source), "<s>user26 Jul 2024")

    def test_a_template_cannot_reach_python(self) -> None:
        for source in ("{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"):
            with self.subTest(source=source), self.assertRaises(TemplateRefused):
                ChatTemplate(source, {}, NOW).render(QUESTION)

    def test_a_refusal_carries_the_templates_words(self) -> None:
        # speculators#801: one row on which the template raises must not end the run.
        with self.assertRaisesRegex(TemplateRefused, "roles must alternate"):
            load_template(GOLDEN / "mistral", NOW).render([user("a"), user("b")])

    def test_generation_blocks_become_spans(self) -> None:
        rendered = ChatTemplate("a{% generation %}b{{ 'c' }}{%- endgeneration %}d", {}, NOW).render([])
        self.assertEqual((rendered.text, rendered.generation_spans), ("abcd", ((1, 3),)))

    def test_the_template_file_goes_before_the_configuration(self) -> None:
        scratch = Scratch()
        self.addCleanup(scratch.close)
        folder = scratch.model("llama3", chat_template=[{"name": "default", "template": "list"}])
        self.assertEqual(load_template(folder, NOW).source, "list")
        (folder / "chat_template.jinja").write_text("file", encoding="utf-8")
        self.assertEqual(load_template(folder, NOW).source, "file")

    def test_the_hash_of_a_template_is_the_one_that_training_computes(self) -> None:
        # tests/actors/template_check_test.cc has the same hashes.
        for family, digest in (("qwen2.5", "3b5587f923960e6d235945d2ba21b4183cc21d62ec0efaafd26677c79704c2f2"),
                               ("llama3", "c9e0d21bca5c82876e0769aead23809440981ec36193caf6345d3a5d96a63a6a")):
            self.assertEqual(load_model(GOLDEN / family).template_hash, digest)
        scratch = Scratch()
        self.addCleanup(scratch.close)
        folder = scratch.model("qwen2.5")
        for config, digest in (({"eos_token": "</s>", "bos_token": {"content": "<s\u00e9>", "lstrip": False}, "pad_token": None,
                                 "add_bos_token": True, "chat_template": "\u00e9\x7f\t\"\\\u2028\U0001f600/{{ messages }}\n"},
                                "b07edf1727b8cacedb9ed8b528d2a742ea7545f65e4fdc85e61293e0f198158a"),
                               ({"chat_template": [{"name": "tool_use", "template": "{{ y }}"},
                                                   {"name": "default", "template": "{{ x }}"}]},
                                "51ae30adbe70d58c369d839719d90c9fa1706191639a5ad2d352247032bc27ba")):
            (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
            self.assertEqual(load_model(folder).template_hash, digest)

    def test_missing_and_broken_templates_are_named(self) -> None:
        scratch = Scratch()
        self.addCleanup(scratch.close)
        with self.assertRaisesRegex(TemplateMissing, "neither chat_template.jinja"):
            load_template(scratch.model("llama3", chat_template=None), NOW)
        with self.assertRaisesRegex(TemplateMissing, "line 2"):
            ChatTemplate("a\n{% if %}", {}, NOW)


if __name__ == "__main__":
    unittest.main()
