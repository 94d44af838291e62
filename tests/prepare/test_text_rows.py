"""Preformatted text is taken where it is what the model's own template renders."""
import json
import unittest

from support import GOLDEN, QUESTION, Scratch, assistant, run_job, samples_of, user

from percheron_prepare.loss_mask import MaskUnproven
from percheron_prepare.model import load_model
from percheron_prepare.options import Options
from percheron_prepare.source_row import Rejected
from percheron_prepare.text_rows import TextRows

FAMILIES = ("llama3", "mistral", "phi3", "qwen2.5", "qwen3")


class TextRowsTest(unittest.TestCase):
    def test_every_golden_text_has_its_golden_mask_or_is_rejected(self) -> None:
        taken = 0
        for family in FAMILIES:
            rows = TextRows(load_model(GOLDEN / family))
            for case in json.loads((GOLDEN / family / "cases.json").read_text(encoding="utf-8"))["cases"]:
                if "refused" in case:
                    continue
                with self.subTest(family=family, case=case["name"]):
                    try:
                        row = rows.row(case["text"])
                    except (Rejected, MaskUnproven):
                        continue
                    taken += 1
                    self.assertEqual((row.ids, row.mask), (case["ids"], case["mask"]))
        self.assertGreater(taken, 40)

    def test_common_chats_are_taken(self) -> None:
        chats = [QUESTION, [*QUESTION, user("Thanks."), assistant("You are welcome.")],
                 [{"role": "system", "content": "Be short."}, *QUESTION]]
        for family in FAMILIES:
            model = load_model(GOLDEN / family)
            for chat in chats[: 2 if family == "mistral" else 3]:
                with self.subTest(family=family, turns=len(chat)):
                    text = model.encoder.render(chat, None).text
                    self.assertEqual(TextRows(model).row(text), model.encoder.conversation_row(chat))

    def test_white_space_behind_the_last_turn_may_be_missing(self) -> None:
        model = load_model(GOLDEN / "qwen2.5")
        whole = model.encoder.conversation_row(QUESTION)
        row = TextRows(model).row(model.encoder.render(QUESTION, None).text.rstrip())
        self.assertEqual((row.ids, row.mask), (whole.ids[:-1], whole.mask[:-1]))

    def test_text_of_another_template_is_rejected(self) -> None:
        scratch = Scratch()
        self.addCleanup(scratch.close)
        model = load_model(GOLDEN / "qwen2.5")
        text = model.encoder.render(QUESTION, None).text
        odd = [load_model(GOLDEN / "llama3").encoder.render(QUESTION, None).text, "user: a", text.replace("assistant\n", "assistant\n\n", 1)[:-9],
               text.replace("<|im_start|>assistant\n", "<|im_start|>assistant:"), ""]
        source = scratch.rows([{"text": text}, *({"text": t} for t in odd), {"text": 5}])
        done = run_job(model, Options(), source, scratch.path / "out.safetensors")
        self.assertEqual(dict(done.tally.rejected), {"text_not_of_this_template": 4, "bad_text": 2})
        self.assertEqual(len(samples_of(scratch.path / "out.safetensors")), 1)


if __name__ == "__main__":
    unittest.main()
