"""Rows as data sets really have them: each is taken for what it means, or left out with a reason, never in silence."""
import json
import random
import unittest
from typing import Any

from support import GOLDEN, QUESTION, Scratch, assistant, run_job, samples_of, supervised_text, user

from percheron_prepare.model import load_model
from percheron_prepare.options import Options
from percheron_prepare.prepare import Prepared
from percheron_prepare.tally import KEYS_MAX

SYSTEM = {"role": "system", "content": "Be brief."}


def call(arguments: Any, name: Any = "f") -> list[Any]:
    return [{"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}]


def parts(*texts: Any) -> list[Any]:
    return [{"type": "text", "text": text} for text in texts]


# Messages, and what is supervised of them.
TAKEN: list[tuple[list[Any], str]] = [
    ([user(""), assistant("a")], "a<|im_end|>"),
    ([user("q"), assistant("")], "<|im_end|>"),
    ([{"role": "user", "content": parts("q", "r")}, {"role": "assistant", "content": parts("a", "b")}], "ab<|im_end|>"),
    ([{"role": "user", "content": [{"text": "q"}]}, assistant("a")], "a<|im_end|>"),
    ([{"role": "developer", "content": "x"}, user("q"), assistant("a")], "a<|im_end|>"),
    ([user("q"), assistant("a"), SYSTEM, user("r"), assistant("b")], "a<|im_end|>b<|im_end|>"),
    ([user("q"), assistant("a"), SYSTEM], "a<|im_end|>"),
    ([user("q"), assistant("a"), assistant("b")], "a<|im_end|>b<|im_end|>"),
    ([user("a\0\x1b\r\nb"), assistant("c\u2028\ufeff\u202e\uffff\r\n")], "c\u2028\ufeff\u202e\uffff\r\n<|im_end|>"),
    ([user("q"), assistant("", tool_calls=call({"a": {"b": [1, {"c": None}], "d": "\u00e9\"\n"}}))],
     '<tool_call>\n{"name": "f", "arguments": {"a": {"b": [1, {"c": null}], "d": "\u00e9\\"\\n"}}}\n</tool_call><|im_end|>'),
    ([user("q"), assistant("", tool_calls=call('{"a": {"b": [1, {"c": null}]}}'))],
     '<tool_call>\n{"name": "f", "arguments": {"a": {"b": [1, {"c": null}]}}}\n</tool_call><|im_end|>'),
    ([user("q"), {"role": "assistant", "content": None, "tool_calls": call({})}, {"role": "tool", "content": None},
      assistant("a")], '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>a<|im_end|>'),
    ([user("q"), assistant("a", reasoning_content="", refusal=None, weight=1)], "a<|im_end|>"),
    ([{"from": "human", "value": "q"}, {"role": "assistant", "content": "a"}], "a<|im_end|>"),
]

# Messages, and the reason why they are left out.
LEFT_OUT: list[tuple[Any, str]] = [
    ([user("q"), {"role": "assistant", "content": 5}], "unsupported_content"),
    ([{"role": "user", "content": True}, assistant("a")], "unsupported_content"),
    ([{"role": "user", "content": {"text": "q"}}, assistant("a")], "unsupported_content"),
    ([{"role": "user", "content": ["q"]}, assistant("a")], "unsupported_content"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, assistant("a")], "unsupported_content"),
    ([{"role": "user", "content": [{"type": "image", "text": "caption"}]}, assistant("a")], "unsupported_content"),
    ([{"role": "user", "content": None}, assistant("a")], "content_missing"),
    ([{"role": "user"}, assistant("a")], "content_missing"),
    ([{"role": "system", "content": None}, user("q"), assistant("a")], "content_missing"),
    ([user("q"), {"role": "assistant", "content": None, "tool_calls": []}], "answer_missing"),
    ([user("q"), {"role": "assistant", "content": None, "reasoning_content": "hm"}], "answer_missing"),
    ([user("q"), assistant("", function_call={"name": "f", "arguments": "{}"})], "function_call"),
    ([user("q"), assistant("a", weight=0)], "unsupported_weight"),
    ([user("q"), assistant("a", reasoning_content=5)], "bad_thought"),
    ([user("q"), assistant("a", thinking=["x"])], "bad_thought"),
    ([{"role": "User", "content": "q"}, assistant("a")], "unknown_role"),
    ([{"role": None, "content": "q"}, assistant("a")], "unknown_role"),
    ([{"role": ["user"], "content": "q"}, assistant("a")], "unknown_role"),
    ([user("q"), {"from": "bing", "value": "a"}], "unknown_role"),
    ([user("q"), assistant("x", tool_calls={"function": {"name": "f"}})], "bad_tool_calls"),
    ([user("q"), assistant("x", tool_calls=["f"])], "bad_tool_calls"),
    ([user("q"), assistant("x", tool_calls=[{"name": "f", "arguments": {}}])], "template_refused"),
    ([user("q"), assistant("x", tool_calls=call({}, 5))], "template_refused"),
    (["q", assistant("a")], "bad_message"), ([None, assistant("a")], "bad_message"), ([[user("q")]], "bad_message"),
    ({"role": "user"}, "bad_messages"), ("q", "bad_messages"), (None, "bad_messages"),
    ([user("\U0010fff0"), assistant("a")], "private_characters"),
]


class OddRowsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Scratch()
        self.addCleanup(self.scratch.close)
        self.output = self.scratch.path / "out.safetensors"
        self.model = load_model(GOLDEN / "qwen2.5")

    def prepare(self, rows: list[Any], **options: Any) -> Prepared:
        return run_job(self.model, Options(**options), self.scratch.rows(rows), self.output)

    def test_what_can_be_understood_is_taken(self) -> None:
        for messages, expected in TAKEN:
            with self.subTest(messages=messages):
                done = self.prepare([{"messages": messages}])
                self.assertEqual(dict(done.tally.rejected), {})
                (_, ids, mask), = samples_of(self.output)
                self.assertEqual(supervised_text(self.model, ids, mask), expected)

    def test_what_cannot_is_left_out_and_its_neighbours_are_not(self) -> None:
        for messages, reason in LEFT_OUT:
            with self.subTest(messages=messages):
                done = self.prepare([{"messages": QUESTION}, {"messages": messages}, {"messages": QUESTION}])
                self.assertEqual((dict(done.tally.rejected), done.counts("train").samples), ({reason: 1}, 2))

    def test_ids_of_any_kind_become_text(self) -> None:
        ids = ["a", 7, 1.5, True, 10**30, "", None, {"x": 1}, ["y"], "\ud83d"]
        self.prepare([{"id": name, "messages": QUESTION} for name in ids])
        self.assertEqual([name for name, _, _ in samples_of(self.output)],
                         ["a", "7", "1.5", "True", str(10**30), "", "line-7", "line-8", "line-9", "\ufffd"])

    def test_a_system_prompt_beside_the_messages_is_the_chats(self) -> None:
        # LLaMA-Factory's ShareGPT rows have it so.
        self.prepare([{"system": "Be brief.", "messages": QUESTION}, {"messages": [SYSTEM, *QUESTION]},
                      {"system": "", "messages": QUESTION}, {"messages": QUESTION}])
        first, second, third, fourth = (ids for _, ids, _ in samples_of(self.output))
        self.assertEqual((first, third), (second, fourth))
        self.assertNotEqual(first, fourth)
        done = self.prepare([{"messages": QUESTION}, {"system": "x", "messages": [SYSTEM, *QUESTION]},
                             {"system": ["x"], "messages": QUESTION}])
        self.assertEqual(dict(done.tally.rejected), {"two_system_prompts": 1, "bad_system": 1})

    def test_tools_are_objects_or_their_text(self) -> None:
        tool = {"type": "function", "function": {"name": "f"}}
        self.prepare([{"messages": QUESTION, "tools": tools} for tools in
                      ([tool], json.dumps([tool]), [json.dumps(tool)], None, [], "", "null")])
        first, second, third, *without = (ids for _, ids, _ in samples_of(self.output))
        self.assertEqual([first, first], [second, third])
        self.assertEqual(without, [without[0]] * 4)
        bad = [{}, "{}", [5], ["f"], 5, "no json"]
        done = self.prepare([{"messages": QUESTION}, *({"messages": QUESTION, "tools": tools} for tools in bad)])
        self.assertEqual(dict(done.tally.rejected), {"bad_tools": len(bad)})

    def test_speculators_835_every_word_for_a_cut_answer_counts(self) -> None:
        rows: list[dict[str, Any]] = [{"finish_reason": "length"}, {"finish_reason": "max_tokens"}, {"complete": False}, {"finish_reason": "stop"},
                {"complete": True}, {"complete": None}]
        done = self.prepare([{"messages": QUESTION, **row} for row in rows])
        self.assertEqual(done.tally.notes["answers_cut_at_length"], 3)
        done = self.prepare([{"messages": QUESTION}, {"messages": QUESTION, "complete": "false"}])
        self.assertEqual(dict(done.tally.rejected), {"bad_complete": 1})

    def test_of_two_spellings_in_one_row_the_one_that_is_there_counts(self) -> None:
        # Columns of a merged data set: every row has every key.
        self.prepare([{"messages": None, "conversations": QUESTION}, {"messages": QUESTION, "conversations": None}])
        first, second = (ids for _, ids, _ in samples_of(self.output))
        self.assertEqual(first, second)

    def test_entries_that_nothing_is_made_of_are_counted(self) -> None:
        rows = [{"messages": QUESTION, "source": "x", "chat_template_kwargs": {"enable_thinking": False}, "empty": None},
                {"messages": QUESTION, "conversations": QUESTION, "source": "y"},
                {"input_ids": [1, 2], "loss_mask": [0, 1], "attention_mask": [1, 1]}]
        notes = self.prepare(rows).tally.notes
        found = {note.rsplit(" ", 1)[1]: count for note, count in notes.items() if note.startswith("entry that nothing")}
        self.assertEqual(found, {"source": 2, "chat_template_kwargs": 1, "conversations": 1, "attention_mask": 1})
        notes = self.prepare([{"messages": QUESTION, f"key{i}\n": 1} for i in range(2 * KEYS_MAX)]).tally.notes
        found = {note: count for note, count in notes.items() if note.startswith("entry that nothing")}
        self.assertEqual((len(found), sum(found.values())), (KEYS_MAX + 1, 2 * KEYS_MAX))
        self.assertEqual(found["entry that nothing is made of: (others)"], KEYS_MAX)

    def test_any_row_of_random_values_is_taken_or_left_out(self) -> None:
        seed = random.randrange(1 << 30)
        draw = random.Random(seed)
        leaves: list[Any] = [None, True, 0, -1, 1.5, 1e300, "", "a", "user", "assistant", "\ud83d", "<|im_end|>", "{}", "[1]", [], {}]
        keys = ["role", "content", "from", "value", "messages", "conversations", "tools", "tool_calls", "function", "arguments",
                "name", "text", "type", "input_ids", "loss_mask", "prompt", "turns", "id", "system", "complete", "weight"]

        def value(depth: int) -> Any:
            kind = draw.randrange(4) if depth else 0
            if kind == 1:
                return [value(depth - 1) for _ in range(draw.randrange(4))]
            if kind >= 2:
                return {draw.choice(keys): value(depth - 1) for _ in range(draw.randrange(5))}
            return draw.choice(leaves)

        rows = [{**QUESTION_ROW, draw.choice(keys): value(3)} if draw.random() < 0.5 else value(4) for _ in range(600)]
        done = self.prepare([QUESTION_ROW, *rows])
        self.assertEqual(done.tally.read, 601, f"seed {seed}")
        self.assertGreaterEqual(done.counts("train").samples + done.tally.rejected_count, 601, f"seed {seed}")


QUESTION_ROW = {"messages": QUESTION}


if __name__ == "__main__":
    unittest.main()
