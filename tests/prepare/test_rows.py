"""Spellings of rows, faults of lines, and what happens to rows that cannot be used."""
import json
import unittest
from typing import Any

from support import GOLDEN, QUESTION, Scratch, assistant, run_job, user

from percheron_prepare.model import load_model
from percheron_prepare.options import ConsecutiveUsers, Options
from percheron_prepare.output_paths import Output
from percheron_prepare.prepare import Prepared
from percheron_prepare.shard import read_shard

SHAREGPT = [{"from": "human", "value": QUESTION[0]["content"]}, {"from": "gpt", "value": QUESTION[1]["content"]}]


class RowsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Scratch()
        self.addCleanup(self.scratch.close)
        self.output = self.scratch.path / "out.safetensors"

    def prepare_bytes(self, content: bytes, family: str = "qwen2.5", **options: Any) -> Prepared:
        source = self.scratch.path / "in.jsonl"
        source.write_bytes(content)
        return run_job(load_model(GOLDEN / family), Options(**options), source, self.output)

    def prepare_rows(self, *rows: Any, family: str = "qwen2.5", **options: Any) -> Prepared:
        return self.prepare_bytes("".join(json.dumps(row) + "\n" for row in rows).encode(), family, **options)

    def samples(self) -> list[list[int]]:
        tensors, _ = read_shard(self.output)
        offsets = tensors["offsets"]
        return [tensors["tokens"][a:b].tolist() for a, b in zip(offsets, offsets[1:])]

    def names(self) -> list[str]:
        tensors, _ = read_shard(self.output)
        offsets, blob = tensors["id_offsets"], tensors["ids"].tobytes()
        return [blob[a:b].decode() for a, b in zip(offsets, offsets[1:])]

    def reasons(self) -> list[str]:
        with open(Output(self.output).rejected, encoding="utf-8") as file:
            return [json.loads(line)["reason"] for line in file]

    def test_specforge_575_all_spellings_of_a_chat_give_the_same_ids(self) -> None:
        # SpecForge#575.
        parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}, QUESTION[1]]
        self.prepare_rows({"id": "a", "messages": QUESTION}, {"id": 7, "conversations": QUESTION},
                          {"conversations": SHAREGPT}, {"id": None, "messages": parts})
        samples = self.samples()
        self.assertEqual(samples, [samples[0]] * 4)
        self.assertEqual(self.names(), ["a", "7", "line-3", "line-4"])

    def test_specforge_c34487a1_tools_as_list_and_as_text_give_the_same_ids(self) -> None:
        # SpecForge c34487a1.
        template = "{{ tools | tojson if tools else '' }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + " \
                   "m.content + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}" \
                   "{{ '<|im_start|>assistant\\n' }}{% endif %}"
        model = load_model(self.scratch.model("qwen2.5", chat_template=template))
        tools = [{"type": "function", "function": {"name": "f"}}]
        source = self.scratch.rows([{"messages": QUESTION, "tools": tools},
                                    {"messages": QUESTION, "tools": json.dumps(tools)},
                                    {"messages": QUESTION}, {"messages": QUESTION, "tools": "no json"}])
        run_job(model, Options(), source, self.output)
        listed, text, none = self.samples()
        self.assertEqual(listed, text)
        self.assertNotEqual(listed, none)
        self.assertEqual(self.reasons(), ["bad_tools"])

    def test_specforge_429_arguments_of_tool_calls_may_be_objects_or_text(self) -> None:
        # SpecForge#429.
        def row(arguments: Any) -> dict[str, Any]:
            call = {"function": {"name": "f", "arguments": arguments}}
            return {"messages": [user("?"), assistant("", tool_calls=[call])]}

        odd = {"messages": [user("?"), assistant("x", tool_calls=[{"function": "f"}])]}
        self.prepare_rows(row({"a": "x"}), row('{"a": "x"}'), row("not json"), odd)
        self.assertEqual(self.reasons(), ["bad_tool_calls"])
        first, second, third = self.samples()
        self.assertEqual(first, second)
        self.assertNotEqual(first, third)

    def test_a_tool_chat_supervises_every_answer_and_no_tool_result(self) -> None:
        # SpecForge's tool_use_conversation.jsonl in small: integer id, empty reasoning, calls with text arguments.
        call = [{"id": "c", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a"}'}}]
        chat = [user("Read."), {"role": "assistant", "content": None, "reasoning_content": "", "tool_calls": call},
                {"role": "tool", "content": "RESULT", "tool_call_id": "c"}, assistant("Done.")]
        self.prepare_rows({"id": 9, "conversations": chat})
        tensors, _ = read_shard(self.output)
        model = load_model(GOLDEN / "qwen2.5")
        text = model.tokenizer.raw.decode(tensors["tokens"][tensors["loss_mask"] == 1].tolist(),
                                          skip_special_tokens=False)
        self.assertEqual(text, '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call><|im_end|>'
                               "Done.<|im_end|>")

    def test_unusable_rows_are_counted_by_reason_and_kept(self) -> None:
        # SpecForge#392 (preformatted text), #482 (empty, assistant first); speculators#584 (no answer).
        done = self.prepare_rows(
            {"messages": QUESTION}, {"text": "user: a assistant: b"}, {"conversations": []},
            {"messages": [assistant("a"), user("b"), assistant("c")]}, {"messages": [user("a")]},
            {"messages": [{"role": "narrator", "content": "a"}]}, ["list"], {"other": 1},
            {"messages": [user("a"), {"role": "assistant", "content": [{"type": "image"}]}]},
            {"messages": [user("a"), {"role": "assistant", "content": None}]})
        expected = ["text_not_of_this_template", "empty_conversation", "starts_with_assistant", "no_assistant_turn",
                    "unknown_role", "not_an_object", "unknown_shape", "unsupported_content", "answer_missing"]
        self.assertEqual(self.reasons(), expected)
        self.assertEqual((done.tally.read, done.counts("train").samples), (10, 1))
        self.assertEqual(dict(done.tally.rejected), dict.fromkeys(expected, 1))

    def test_a_row_that_the_template_refuses_leaves_the_others(self) -> None:
        # speculators#801, SpecForge#216.
        self.prepare_rows({"messages": QUESTION}, {"messages": [user("a"), *QUESTION]}, family="mistral")
        self.assertEqual((len(self.samples()), self.reasons()), (1, ["template_refused"]))

    def test_two_user_turns_in_a_row_are_kept_merged_or_skipped(self) -> None:
        # SpecForge#216, #221.
        chat = {"messages": [user("Hello?"), user("Anyone?"), assistant("Yes.")]}
        merged = {"messages": [user("Hello?\n\nAnyone?"), assistant("Yes.")]}
        self.prepare_rows(chat, merged, consecutive_users=ConsecutiveUsers.MERGE)
        first, second = self.samples()
        self.assertEqual(first, second)
        self.prepare_rows(chat)
        self.assertNotEqual(self.samples()[0], first)
        self.prepare_rows(chat, merged, consecutive_users=ConsecutiveUsers.SKIP)
        self.assertEqual(self.reasons(), ["consecutive_users"])

    def test_answers_cut_at_a_length_are_counted(self) -> None:
        # speculators#835.
        cut = [QUESTION[0], assistant("12 +", finish_reason="length")]
        done = self.prepare_rows({"messages": QUESTION}, {"messages": QUESTION, "complete": False},
                                 {"messages": QUESTION, "finish_reason": "length"}, {"messages": cut})
        self.assertEqual(done.tally.notes["answers_cut_at_length"], 3)
        whole, first, second, _ = self.samples()
        self.assertEqual(first, second)
        self.assertEqual(whole[: len(first)], first)
        self.assertEqual(len(whole) - len(first), 2)

    def test_faults_of_lines_are_tolerated_or_counted(self) -> None:
        row = json.dumps({"messages": QUESTION}).encode()
        done = self.prepare_bytes(b"\xef\xbb\xbf" + row + b"\r\n\r\n\n" + row + b"\n\xff\n{nonsense}\n" + row[:-9])
        self.assertEqual(done.counts("train").samples, 2)
        self.assertEqual(self.reasons(), ["bad_utf8", "bad_json", "cut_last_line"])
        with open(Output(self.output).rejected, encoding="utf-8") as file:
            entries = [json.loads(line) for line in file]
        self.assertEqual([entry["line"] for entry in entries], [5, 6, 7])
        self.assertEqual(entries[2]["byte_offset"], 3 + 2 * len(row) + 6 + 2 + 11)

    def test_lone_surrogates_are_replaced_and_counted(self) -> None:
        row = '{"messages": [{"role": "user", "content": "\\ud83d x \\ud83d\\ude00"}, ' \
              '{"role": "assistant", "content": "y"}]}\n'
        done = self.prepare_bytes(row.encode())
        self.assertEqual(done.tally.notes["lone_surrogates_replaced"], 1)
        text = load_model(GOLDEN / "qwen2.5").tokenizer.raw.decode(self.samples()[0])
        self.assertIn("\ufffd x \U0001f600", text)

    def test_faults_of_json_within_json_cost_their_row_at_most(self) -> None:
        call = {"type": "function", "function": {"name": "f", "arguments": '{"x": "\\ud83d"}'}}
        chat = [*QUESTION[:1], {"role": "assistant", "content": "", "tool_calls": [call]}]
        prepared = self.prepare_rows({"messages": chat}, {"messages": QUESTION, "tools": "[" * 100000},
                                     {"messages": QUESTION})
        self.assertEqual(prepared.tally.read, 3)
        self.assertEqual(prepared.tally.rejected, {"bad_tools": 1})

    def test_ready_ids_are_checked_and_taken_over(self) -> None:
        done = self.prepare_rows({"id": "t", "input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]},
                                 {"input_ids": [5], "loss_mask": [0, 1]}, {"input_ids": [5], "loss_mask": [0]},
                                 {"input_ids": [-5], "loss_mask": [1]}, {"input_ids": [70000], "loss_mask": [1]})
        self.assertEqual(self.samples(), [[5, 6, 7]])
        self.assertEqual(self.reasons(), ["bad_token_row", "no_supervision", "bad_token_row", "id_out_of_range"])
        self.assertEqual(done.counts("train").supervised_tokens, 2)


if __name__ == "__main__":
    unittest.main()
