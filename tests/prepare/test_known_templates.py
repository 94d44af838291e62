"""Templates in the shapes of public models: each mask is proven, or the row is left out with the reason why."""
import random
import unittest
from typing import Any

from known_templates import KNOWN, Known
from support import Scratch, assistant, run_job, samples_of, supervised_text, user

from percheron_prepare.chat_template import TemplateRefused
from percheron_prepare.loss_mask import MaskUnproven, Rows
from percheron_prepare.model import Model, load_model
from percheron_prepare.options import Options

PIECES = ["a", " b", "12", "\n", "Hello.", "don't", "\u00e9", "\u4f60", "\U0001f600", "{\"a\": 1}", "assistant", "USER:", " "]


class KnownTemplatesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Scratch()
        self.addCleanup(self.scratch.close)

    def model(self, name: str) -> Model:
        folder = self.scratch.path / name
        return load_model(folder if folder.exists() else KNOWN[name].write(folder))

    def written(self, known: Known, chat: list[dict[str, Any]]) -> list[str]:
        """What the model has to write, answer by answer."""
        return [known.before + m["content"] + known.end for m in chat if m["role"] == "assistant"]

    def test_answers_and_their_ends_are_supervised_and_nothing_else(self) -> None:
        chat = [user("What is it?"), assistant("It is a lion."), user("And that?"), assistant("A horse, of 12.")]
        for name, known in KNOWN.items():
            model = self.model(name)
            for messages in (chat, chat[:2], [{"role": "system", "content": "Be brief."}, *chat]):
                with self.subTest(template=name, messages=len(messages)):
                    if known.rejected:
                        with self.assertRaises(MaskUnproven) as caught:
                            model.encoder.rows(messages)
                        self.assertIn(f"mask_unproven_{caught.exception.args[0]}", known.rejected)
                    elif messages[0]["role"] == "system" and not known.takes_system:
                        self.assertRaises(TemplateRefused, model.encoder.rows, messages)
                    else:
                        rows = model.encoder.rows(messages)
                        text = "".join(supervised_text(model, row.ids, row.mask) for row in rows)
                        self.assertEqual(text, "".join(self.written(known, messages)))

    def test_every_row_begins_with_what_a_server_is_asked(self) -> None:
        chat = [user("What is it?"), assistant("It is a lion."), user("And that?"), assistant("A horse, of 12.")]
        for name, known in KNOWN.items():
            if known.rejected:
                continue
            model = self.model(name)
            for row, last in zip(model.encoder.rows(chat, rows=Rows.TURN), (1, 3)):
                with self.subTest(template=name):
                    prompt = model.encoder.prompt(chat[:last])
                    self.assertEqual((row.ids[: len(prompt)], any(row.mask[: len(prompt)])), (prompt, False))

    def test_random_chats_are_right_or_left_out(self) -> None:
        seed = random.randrange(1 << 30)
        draw = random.Random(seed)
        taken = dict.fromkeys(KNOWN, 0)
        for name, known in KNOWN.items():
            model = self.model(name)
            for _ in range(60):
                chat = [message for _ in range(draw.randrange(1, 4))
                        for message in (user("".join(draw.choices(PIECES, k=5))), assistant("".join(draw.choices(PIECES, k=4))))]
                with self.subTest(template=name, seed=seed, chat=chat):
                    try:
                        rows = model.encoder.rows(chat)
                    except (MaskUnproven, TemplateRefused):
                        continue
                    taken[name] += 1
                    text = "".join(supervised_text(model, row.ids, row.mask) for row in rows)
                    # Some templates trim answers.
                    expected = ["".join(self.written(known, [{**m, "content": trim(m["content"])} for m in chat]))
                                for trim in (str, str.strip)]
                    if name == "qwen3_thinking":  # Line breaks may be one token with those of an empty thought.
                        text, expected = text.replace("\n", ""), [one.replace("\n", "") for one in expected]
                    self.assertIn(text, expected)
        self.assertEqual([name for name, count in taken.items() if count < 30], [n for n, k in KNOWN.items() if k.rejected])

    def test_a_row_that_is_left_out_tells_why(self) -> None:
        chat = [user("What is it?"), assistant("It is a lion.")]
        for name, known in KNOWN.items():
            if known.rejected:
                done = run_job(self.model(name), Options(), self.scratch.rows([{"messages": chat}]),
                               self.scratch.path / "out.safetensors")
                self.assertLessEqual(set(done.tally.rejected), known.rejected)
                (_, why), = done.tally.first_rejected.values()
                self.assertIn(": ", why)

    def test_calls_of_a_template_with_tools_are_supervised_and_their_results_are_not(self) -> None:
        model = self.model("llama31_tools")
        call = [{"type": "function", "function": {"name": "weather", "arguments": {"place": {"city": "\u00c5s", "n": [1, None]}}}}]
        tools = [{"type": "function", "function": {"name": "weather"}}]
        chat = [user("Weather?"), assistant("", tool_calls=call), {"role": "tool", "content": "RESULT"}, assistant("Rain.")]
        row, = model.encoder.rows(chat, tools)
        self.assertEqual(supervised_text(model, row.ids, row.mask),
                         '{"name": "weather", "parameters": {"place": {"city": "\u00c5s", "n": [1, null]}}}<|eot_id|>Rain.<|eot_id|>')
        with self.assertRaisesRegex(TemplateRefused, "single tool-calls"):
            model.encoder.rows([user("?"), assistant("", tool_calls=call * 2)])

    def test_automodel_3739_a_thinking_models_empty_thought_is_not_supervised(self) -> None:
        model = self.model("qwen3_thinking")
        row, = model.encoder.rows([user("2+2?"), assistant("4")])
        self.assertEqual(supervised_text(model, row.ids, row.mask), "4<|im_end|>")
        self.assertIn("<think>\n\n</think>\n\n4", model.tokenizer.raw.decode(row.ids, skip_special_tokens=False))
        row, = model.encoder.rows([user("2+2?"), assistant("4", reasoning_content="Two and two.")])
        self.assertEqual(supervised_text(model, row.ids, row.mask), "Two and two.\n</think>\n\n4<|im_end|>")


if __name__ == "__main__":
    unittest.main()
