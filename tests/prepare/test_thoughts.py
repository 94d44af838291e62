"""Thoughts of answers: supervised, rendered only, or left out."""
import unittest

from support import Scratch, assistant, supervised_text, user

from percheron_prepare.loss_mask import MaskUnproven, Rows, Thinking
from percheron_prepare.model import load_model
from percheron_prepare.thoughts import without_thought

CHAT = [user("2+2?"), assistant("4", reasoning_content="Two and two.")]
INLINE = [user("2+2?"), assistant("<think>\nTwo and two.\n</think>\n\n4")]
PLAIN = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}" \
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"


class ThoughtsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Scratch()
        self.addCleanup(self.scratch.close)

    def test_a_thought_may_be_context_only(self) -> None:
        # speculators#346: whether a thought is supervised is a choice that is said.
        tagged, plain = load_model(self.scratch.model("qwen3")), load_model(self.scratch.model("qwen2.5", chat_template=PLAIN))
        for model, chat in ((tagged, CHAT), (tagged, INLINE), (plain, INLINE)):
            whole, = model.encoder.rows(chat)
            self.assertIn("Two and two.", supervised_text(model, whole.ids, whole.mask))
            for rows in Rows:
                row, = model.encoder.rows(chat, rows=rows, thinking=Thinking.CONTEXT)
                self.assertEqual(row.ids, whole.ids[: len(row.ids)])
                self.assertEqual(supervised_text(model, row.ids, row.mask), "4<|im_end|>")

    def test_answers_without_thought_stay_as_they_are(self) -> None:
        model = load_model(self.scratch.model("qwen3"))
        chat = [user("2+2?"), assistant("4"), user("3+3?"), assistant("6")]
        self.assertEqual(model.encoder.rows(chat, thinking=Thinking.CONTEXT), model.encoder.rows(chat))

    def test_a_thought_whose_end_is_not_found_is_refused(self) -> None:
        template = PLAIN.replace("m.content +", "m.content | upper +")
        model = load_model(self.scratch.model("qwen2.5", chat_template=template))
        with self.assertRaises(MaskUnproven):
            model.encoder.rows([user("a"), assistant("<think>b</think>c")], thinking=Thinking.CONTEXT)

    def test_a_thought_is_taken_out_wherever_it_stands(self) -> None:
        for message in (CHAT[1], INLINE[1], assistant("4", thinking="x")):
            self.assertEqual(without_thought(message), assistant("4"))
        self.assertEqual(without_thought(assistant("It is </think> 4")), assistant("It is </think> 4"))


if __name__ == "__main__":
    unittest.main()
