"""What a target writes, as a message that its template renders to the same tokens again."""
import unittest
from typing import Any

from support import GOLDEN, Scratch, assistant, user

from percheron_prepare.chat_template import Message
from percheron_prepare.conversation import Answer
from percheron_prepare.local_answers import stop_ids
from percheron_prepare.model import Model, load_model
from percheron_prepare.source_row import Rejected
from percheron_prepare.written_answer import written_answer

FAMILIES = ("llama3", "mistral", "phi3", "qwen2.5", "qwen3")


def write(model: Model, text: str, stopped: bool = True, history: list[Message] | None = None,
          drop: int = 0) -> Answer:
    """The answer of a target that writes `text`, less `drop` ids at its end, and the stop token."""
    asked = history or [user("2+2?")]
    ids = model.tokenizer.encode_ids(text)
    ids = ids[: len(ids) - drop] + (stop_ids(model)[:1] if stopped else [])
    prompt = model.encoder.render(asked, None, generation_prompt=True).text
    return written_answer(model, asked, None, prompt, ids, stopped)


class WrittenAnswerTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Scratch()
        self.addCleanup(self.scratch.close)

    def test_answers_of_every_family_come_back_token_for_token(self) -> None:
        for family in FAMILIES:
            # Qwen3's template writes a thought, if only an empty one, before an answer that has none.
            model = load_model(GOLDEN / family, {"enable_thinking": False})
            for text in ("4", "Four\n\n- 4\n", "na\u00efve \U0001f600", "a  b"):
                with self.subTest(family=family, text=text):
                    answer = write(model, text)
                    row = model.encoder.rows([user("2+2?"), answer.message])[0]
                    written = [i for i, m in zip(row.ids, row.mask) if m]
                    self.assertEqual(written[:-1] == model.tokenizer.encode_ids(text), not answer.notes, answer.notes)
                    # Templates that strip, and Mistral's blank, change what was written; nothing else does.
                    if family in ("qwen2.5", "qwen3") or family != "mistral" and text == text.strip():
                        self.assertEqual(answer.notes, ())

    def test_thoughts_are_given_apart_and_render_to_what_was_written(self) -> None:
        model = load_model(GOLDEN / "qwen3")
        for text in ("<think>\nTwo and two.\n</think>\n\n4", "<think>\n\n</think>\n\n4"):
            answer = write(model, text)
            self.assertEqual(answer.notes, ())
            self.assertEqual(answer.message["content"], "4")
            rendered = model.encoder.render([user("2+2?"), answer.message], None).text
            self.assertTrue(rendered.rstrip().endswith(f"assistant\n{text}<|im_end|>"))
        self.assertEqual(write(model, "<think>\nSo.\n</think>\n\n4").message["reasoning_content"], "So.")

    def test_a_thought_that_the_template_adds_is_noted(self) -> None:
        self.assertEqual(write(load_model(GOLDEN / "qwen3"), "4").notes, ("answers_rendered_otherwise",))

    def test_a_thought_that_the_prompt_opens_is_found(self) -> None:
        # As DeepSeek-R1 and Qwen3-Thinking: the generation prompt ends with the opening.
        template = ("{% for m in messages %}<|im_start|>{{ m.role }}\n"
                    "{% if m.role == 'assistant' and loop.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
                    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}")
        model = load_model(self.scratch.model("qwen2.5", chat_template=template))
        answer = write(model, "So.\n</think>\n\n4")
        self.assertEqual((answer.message, answer.notes), (assistant("4", reasoning_content="So."), ()))
        with self.assertRaises(Rejected):
            write(model, "So and so", stopped=False)

    def test_a_cut_answer_ends_at_a_whole_character(self) -> None:
        model = load_model(GOLDEN / "qwen2.5")
        answer = write(model, "ab \U0001f600", stopped=False, drop=1)
        self.assertEqual((answer.message["content"], answer.is_cut), ("ab", True))

    def test_an_answer_that_ends_inside_its_thought_is_refused(self) -> None:
        with self.assertRaises(Rejected) as raised:
            write(load_model(GOLDEN / "qwen3"), "<think>\nTwo and", stopped=False)
        self.assertEqual(raised.exception.reason, "cut_inside_thought")

    def test_what_the_template_or_the_tokenizer_changes_is_noted(self) -> None:
        stripping = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}" \
                    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        model = load_model(self.scratch.model("qwen2.5", chat_template=stripping))
        self.assertEqual(write(model, " 4").notes, ("answers_rendered_otherwise",))
        self.assertEqual(write(model, "4").notes, ())
        prompt = model.encoder.render([user("x")], None, generation_prompt=True).text
        apart = [i for letter in "the" for i in model.tokenizer.encode_ids(letter)]
        self.assertNotEqual(apart, model.tokenizer.encode_ids("the"))
        answer = written_answer(model, [user("x")], None, prompt, [*apart, *stop_ids(model)], True)
        self.assertEqual((answer.message, answer.notes), (assistant("the"), ("answers_tokenized_otherwise",)))
        self.assertEqual(write(model, "").notes, ("answers_empty",))

    def test_another_stop_token_than_the_templates_is_noted(self) -> None:
        model = load_model(GOLDEN / "qwen2.5")
        other = model.tokenizer.id_of("<|endoftext|>")
        prompt = model.encoder.render([user("x")], None, generation_prompt=True).text
        answer = written_answer(model, [user("x")], None, prompt, [*model.tokenizer.encode_ids("4"), other or 0], True)
        self.assertEqual(answer.notes, ("answers_rendered_otherwise",))


if __name__ == "__main__":
    unittest.main()
