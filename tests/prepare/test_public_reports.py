"""Cases from public reports about other trainers; each test is named after its report. More stand beside what they
are about: test_rows, test_loss_mask, test_held_out, test_shard_set, test_doctor."""
import contextlib
import io
import json
import unittest
from pathlib import Path
from typing import Any

from support import GOLDEN, QUESTION, Scratch, assistant, run_job, samples_of, supervised_text, user

from percheron_prepare.__main__ import main
from percheron_prepare.loss_mask import Thinking
from percheron_prepare.model import load_model
from percheron_prepare.options import ConsecutiveUsers, CutAnswers, Options, SystemPrompts
from percheron_prepare.prepare import Prepared
from percheron_prepare.shard import read_shard

DATA = Path(__file__).parent / "data"
HEAD = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"


class PublicReportsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Scratch()
        self.addCleanup(self.scratch.close)
        self.output = self.scratch.path / "out.safetensors"
        self.said = ""

    def prepare(self, rows: list[Any], model: Path = GOLDEN / "qwen2.5", **options: Any) -> Prepared:
        return run_job(load_model(model), Options(**options), self.scratch.rows(rows), self.output)

    def command(self, rows: list[Any], *options: str) -> int:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(["prepare", "--model", str(GOLDEN / "qwen2.5"), "--input", str(self.scratch.rows(rows)), "--output",
                         str(self.output), *options])
        self.said = out.getvalue()
        return code

    def rejected(self) -> list[dict[str, Any]]:
        with open(f"{self.output}.rejected.jsonl", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def test_specforge_392_preformatted_text_with_another_marker_is_counted(self) -> None:
        text = load_model(GOLDEN / "qwen2.5").encoder.render(QUESTION, None).text
        rows = [{"text": text}] * 3 + [{"text": text.replace("<|im_start|>assistant\n", "<|im_start|>assistant")}]
        for limit, code in (("0", 1), ("1%", 1), ("1", 0), ("25%", 0)):
            self.assertEqual(self.command(rows, "--max-rejected", limit), code)
            self.assertIn("1  text_not_of_this_template", self.said)
            self.assertEqual(self.output.exists(), code == 0)

    def test_specforge_482_368_empty_and_answer_first_rows_are_skipped_with_their_lines(self) -> None:
        self.prepare([{"messages": QUESTION}, {"conversations": []}, {"conversations": [assistant("a"), user("b")]}])
        self.assertEqual([(entry["line"], entry["reason"]) for entry in self.rejected()],
                         [(2, "empty_conversation"), (3, "starts_with_assistant")])

    def test_specforge_216_221_three_policies_for_two_questions_in_a_row(self) -> None:
        model = load_model(GOLDEN / "qwen2.5")
        chat = [user("Hello?"), user("Anyone?"), assistant("Yes.")]
        for policy, text in ((ConsecutiveUsers.KEEP, "<|im_start|>user\nHello?<|im_end|>\n<|im_start|>user\nAnyone?<|im_end|>\n"),
                             (ConsecutiveUsers.MERGE, "<|im_start|>user\nHello?\n\nAnyone?<|im_end|>\n")):
            self.prepare([{"messages": chat}], consecutive_users=policy)
            (_, ids, _), = samples_of(self.output)
            self.assertIn(text, model.tokenizer.raw.decode(ids, skip_special_tokens=False))
        done = self.prepare([{"messages": chat}, {"messages": QUESTION}], consecutive_users=ConsecutiveUsers.SKIP)
        self.assertEqual(dict(done.tally.rejected), {"consecutive_users": 1})

    def test_speculators_801_a_row_on_which_the_template_raises_is_alone(self) -> None:
        template = "{% for m in messages if m.role == 'system' %}{{ raise_exception('no system') }}{% endfor %}" + HEAD + PROMPT
        rows = [{"messages": QUESTION}] * 9
        rows.insert(4, {"messages": [{"role": "system", "content": "s"}, *QUESTION]})
        done = self.prepare(rows, self.scratch.model("qwen2.5", chat_template=template))
        self.assertEqual((done.counts("train").samples, dict(done.tally.rejected)), (9, {"template_refused": 1}))
        self.assertEqual(self.rejected()[0]["detail"], "no system")

    def test_speculators_864_and_346_thoughts_are_kept_dropped_or_context(self) -> None:
        model = load_model(GOLDEN / "qwen3")
        rows = [{"messages": [user("2+2?"), assistant("4", reasoning_content="Two and two.")]}]
        for thinking, text in ((Thinking.SUPERVISE, "<think>\nTwo and two.\n</think>\n\n4<|im_end|>"),
                               (Thinking.CONTEXT, "4<|im_end|>"), (Thinking.DROP, "4<|im_end|>")):
            self.prepare(rows, GOLDEN / "qwen3", thinking=thinking)
            (_, ids, mask), = samples_of(self.output)
            self.assertEqual(supervised_text(model, ids, mask), text)
            self.assertEqual("Two and two" in model.tokenizer.raw.decode(ids), thinking is not Thinking.DROP)
            # dflash#133: the set records the mode.
            self.assertEqual(json.loads(read_shard(self.output)[1]["options"])["thinking"], thinking.value)

    def test_megatron_bridge_3359_a_template_whose_answers_cannot_be_found_is_named(self) -> None:
        for template in ("{{ messages[0].content }}", "{% for m in messages %}{{ m.content | upper }}<|im_end|>{% endfor %}",
                         "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"):
            done = self.prepare([{"messages": QUESTION}], self.scratch.model("qwen2.5", chat_template=template))
            self.assertEqual(done.counts("train").samples, 0)
            (reason,) = done.tally.rejected
            self.assertTrue(reason.startswith("mask_unproven_"), reason)
            self.assertTrue(self.rejected()[0]["detail"])

    def test_model_optimizer_2172_nothing_written_is_a_failure(self) -> None:
        self.assertEqual(self.command([{"messages": QUESTION}] * 10, "--min-length", "100000"), 1)
        self.assertIn("10  too_short", self.said)
        self.assertIn("none of 10 rows", self.said)
        self.assertFalse(self.output.exists())

    def test_speculators_835_cut_answers_are_counted_and_can_be_left_out(self) -> None:
        rows = [{"messages": QUESTION, "finish_reason": "length" if i < 3 else "stop"} for i in range(10)]
        self.assertEqual(self.prepare(rows).tally.notes["answers_cut_at_length"], 3)
        done = self.prepare(rows, cut_answers=CutAnswers.SKIP)
        self.assertEqual((done.counts("train").samples, dict(done.tally.rejected)), (7, {"answer_cut_at_length": 3}))

    def test_speculators_584_rows_of_questions_only_are_skipped(self) -> None:
        done = self.prepare([{"messages": QUESTION}, {"messages": [user("a")]}, {"messages": [user("a"), user("b")]}])
        self.assertEqual((done.counts("train").samples, dict(done.tally.rejected)), (1, {"no_assistant_turn": 2}))

    def test_specforge_bcb2ec2a_a_prefix_for_effort_comes_only_when_asked_for(self) -> None:
        template = "{% if reasoning_effort is defined %}{{ '<|im_start|>system\\nEffort: ' + reasoning_effort + '<|im_end|>\\n' }}" \
                   "{% endif %}" + HEAD + PROMPT
        folder, plain = self.scratch.model("qwen2.5", chat_template=template), HEAD + PROMPT
        without = load_model(folder).encoder.rows(QUESTION)
        asked = load_model(folder, {"reasoning_effort": "high"}).encoder.rows(QUESTION)
        self.assertEqual(without, load_model(self.scratch.model("qwen2.5", chat_template=plain)).encoder.rows(QUESTION))
        self.assertGreater(len(asked[0].ids), len(without[0].ids))

    def test_specforge_tool_use_file_supervises_every_answer_and_its_calls(self) -> None:
        model = load_model(GOLDEN / "qwen2.5")
        row = json.loads((DATA / "tool_use_conversation.jsonl").read_text(encoding="utf-8"))
        run_job(model, Options(), DATA / "tool_use_conversation.jsonl", self.output)
        (name, ids, mask), = samples_of(self.output)
        answers = [m for m in row["conversations"] if m["role"] == "assistant"]
        runs = sum(1 for before, now in zip([0, *mask], mask) if now and not before)
        text = supervised_text(model, ids, mask)
        self.assertEqual((name, runs, text.count("<|im_end|>")), ("9", len(answers), len(answers)))
        for message in answers:
            for call in message.get("tool_calls") or ():
                self.assertIn(call["function"]["name"], text)
        self.assertNotIn("tool content", text)

    def test_torchspec_sample_conversations_keep_ids_as_text_and_are_stable(self) -> None:
        rows = [{"id": i if i % 2 else f"s{i}", "conversations": [user(f"q{i}"), assistant(f"a{i}")]} for i in range(1001)]
        tokens = [self.prepare(rows, **{}).counts("train").tokens for _ in range(2)]
        self.assertEqual(tokens[0], tokens[1])
        self.assertEqual([name for name, _, _ in samples_of(self.output)], [str(row["id"]) for row in rows])

    def test_specforge_575_scripts_and_emoji_come_back_as_they_were(self) -> None:
        model = load_model(GOLDEN / "llama3")
        texts = ["\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u4f60\u597d", "e\u0301 \u00e9", "\u05e9\u05dc\u05d5\u05dd", "a\u00a0b"]
        for text in texts:
            row, = model.encoder.rows([user("x"), assistant(text)])
            self.assertEqual(supervised_text(model, row.ids, row.mask), text + "<|eot_id|>")

    def test_a_line_of_40_megabytes_is_read(self) -> None:
        path = self.scratch.rows([{"messages": QUESTION, "extra": "x" * (40 << 20)}, {"messages": QUESTION}])
        done = run_job(load_model(GOLDEN / "qwen2.5"), Options(), path, self.output)
        self.assertEqual(done.counts("train").samples, 2)

    def test_angelslim_288_the_limit_holds_before_anything_is_stored(self) -> None:
        rows = [{"messages": QUESTION}, {"messages": [user("x"), assistant("1 " * 100_000)]}, {"messages": QUESTION}]
        done = self.prepare(rows, max_length=64)
        self.assertEqual(max(len(ids) for _, ids, _ in samples_of(self.output)), 64)
        self.assertEqual(done.tally.notes["rows_truncated"], 1)

    def test_speculators_903_another_row_gives_another_source_hash(self) -> None:
        hashes = []
        for text in ("a", "b"):
            self.prepare([{"messages": QUESTION}, {"messages": [user(text), assistant(text)]}])
            hashes.append(json.loads(read_shard(self.output)[1]["passport"])["source_hash"])
        self.assertNotEqual(*hashes)

    def test_specforge_defaults_no_system_prompt_is_added_unless_asked_for(self) -> None:
        model = load_model(GOLDEN / "llama3")
        system = {"role": "system", "content": "Be short."}
        for options, rows, expected in (({}, [system, *QUESTION], True), ({}, QUESTION, False),
                                        ({"system_prompts": SystemPrompts.DROP}, [system, *QUESTION], False),
                                        ({"default_system_prompt": "Be short."}, QUESTION, True)):
            self.prepare([{"messages": rows}], GOLDEN / "llama3", **options)
            (_, ids, _), = samples_of(self.output)
            self.assertEqual("Be short." in model.tokenizer.raw.decode(ids), expected)


if __name__ == "__main__":
    unittest.main()
