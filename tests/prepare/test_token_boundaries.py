"""The short proof that an encoding splits at a place agrees with encoding both halves."""
import random
import unittest

from support import GOLDEN, assistant, user

from percheron_prepare.loss_mask import Rows, begins_with
from percheron_prepare.model import Model, load_model
from percheron_prepare.token_boundaries import TokenBoundaries, places_in

FAMILIES = ("llama3", "mistral", "phi3", "qwen2.5", "qwen3")
PIECES = ["a", " a", "\n", "\n\n", "  ", "1", "12 + 345", "'s", "Hello.", "é", "\u0301", "\U0001f600", "don't", "\t", "<|im_end|>",
          "{\"a\": 1}", "word " * 30, "x" * 100, " " * 40]


class TokenBoundariesTest(unittest.TestCase):
    def chats(self, seed: int, count: int) -> list[list[dict[str, str]]]:
        draw = random.Random(seed)

        def text() -> str:
            return "".join(draw.choices(PIECES, k=draw.randrange(6)))

        return [[part for _ in range(draw.randrange(1, 4)) for part in (user(text()), assistant(text()))]
                for _ in range(count)]

    def test_what_is_proven_is_so(self) -> None:
        seed = random.randrange(1 << 30)
        for family in ("llama3", "qwen2.5", "qwen3"):
            model, proven = load_model(GOLDEN / family), 0
            boundaries = TokenBoundaries(model.tokenizer)
            for chat in self.chats(seed, 60):
                text = model.encoder.render(chat, None).text
                whole = model.tokenizer.encode(text)
                for at in range(1, len(text), 3):
                    if boundaries.before_word(text, at):
                        proven += 1
                        apart = model.tokenizer.encode(text[:at]).ids + model.tokenizer.encode(text[at:]).ids
                        self.assertEqual(whole.ids, apart, f"seed {seed}, {family}, {text[:at]!r} | {text[at:]!r}")
            self.assertGreater(proven, 50, family)

    def test_tokens_that_take_the_blanks_beside_them_are_not_judged(self) -> None:
        boundaries = TokenBoundaries(load_model(GOLDEN / "phi3").tokenizer)
        text = "<|user|>\na<|end|>\n"
        self.assertFalse(any(boundaries.before_word(text, at) for at in range(len(text))))

    def test_special_ids_are_found_where_they_are_exactly_those_that_are_wanted(self) -> None:
        seed = random.randrange(1 << 30)
        draw = random.Random(seed)
        special = frozenset(range(4))
        for _ in range(3000):
            ids = [draw.randrange(7) for _ in range(draw.randrange(9))]
            own = [i for i, number in enumerate(ids) if number in special]
            wanted = [ids[i] for i in own]
            self.assertEqual(places_in(ids, wanted, special), own, f"seed {seed}")
            other = [draw.randrange(4) for _ in range(draw.randrange(6))]
            self.assertEqual(places_in(ids, other, special), own if other == wanted else None, f"seed {seed}")

    def test_the_short_way_to_a_row_and_the_long_one_agree(self) -> None:
        seed = random.randrange(1 << 30)
        for family in FAMILIES:
            model = load_model(GOLDEN / family)
            for chat in self.chats(seed, 100):
                with self.subTest(family=family, seed=seed, chat=chat):
                    self.assertEqual(self.rows(model, chat), self.long_way(model, chat))

    @staticmethod
    def rows(model: Model, chat: list[dict[str, str]]) -> object:
        return model.encoder.rows(chat)

    @staticmethod
    def long_way(model: Model, chat: list[dict[str, str]]) -> object:
        whole, = model.encoder.rows(chat, rows=Rows.CONVERSATION)
        turns = model.encoder.rows(chat, rows=Rows.TURN)
        return [whole] if all(begins_with(whole, turn) for turn in turns) else turns


if __name__ == "__main__":
    unittest.main()
