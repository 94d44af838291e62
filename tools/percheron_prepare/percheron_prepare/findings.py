"""What is wrong with a data set: how often, where first, and what to do about it."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

# What a check means, and what to do. Checks in NOTES are worth knowing and no fault.
ADVICE = {
    "no_supervision": "no token of the sample is trained on: leave such rows out",
    "everything_supervised": "the prompt is trained on, too: a template without generation blocks, or a wrong mask",
    "double_bos": "the beginning-of-text token stands twice: the text already had it when a tokenizer added it",
    "missing_end_of_turn": "the answer does not end with the end-of-turn token: a drafter never learns to stop",
    "supervised_behind_end_of_turn": "what the server writes after the answer is trained on",
    "empty_answer": "nothing but the end of the turn is learnt: leave such rows out",
    "answer_cut": "generation stopped at a length limit, or the row was truncated: raise the limit, or "
                  "--cut-answers skip",
    "duplicate": "says the same as an earlier one: leave copies out, at least before a held-out split of another tool",
    "duplicate_id": "the same id names two rows",
    "copies_sampled": "too many to remember: from here on copies are looked for among a share, so there may be more",
    "id_out_of_range": "a token id that the vocabulary does not have: made with another tokenizer",
    "other_tokenizer": "the shard was made with another tokenizer.json than --model has: prepare it again",
    "other_template": "the shard was made with another chat template than --model has: prepare it again",
    "passports_differ": "shards of one set that were made differently: training refuses them; prepare them together",
    "missing_shard": "shards.json lists a shard that is not there: copy it, or prepare the set again",
    "unlisted_shard": "a shard that shards.json does not list lies in the folder: training would read it",
    "odd_roles": "two answers in a row, a system prompt behind the beginning, or a tool result that nobody called for",
    "consecutive_users": "two questions in a row: --consecutive-users merge|skip",
    "ends_with_user": "the last question has no answer, so it is not learnt",
    "markers_in_content": "control-token strings inside messages: --markers-in-content text|skip",
    "lone_surrogates_replaced": "half a character (a lone surrogate) became U+FFFD",
    "chats_split_by_turn": "one sample for each answer, because serving renders the history otherwise",
    "end_of_turn_unknown": "no token ends most answers, so their ends are not checked: give --model",
    "bos_inside": "a beginning-of-text token inside the sample",
    "rows_truncated": "cut at --max-length",
}
NOTES = {"consecutive_users", "ends_with_user", "markers_in_content", "lone_surrogates_replaced", "chats_split_by_turn",
         "bos_inside", "duplicate_id", "copies_sampled", "end_of_turn_unknown"}
REJECTED = "rows that prepare would leave out"


@dataclass
class Finding:
    check: str
    count: int = 0
    first: str = ""  # where, and what is said of it
    advice: str = ""

    @property
    def is_problem(self) -> bool:
        return self.check not in NOTES


@dataclass
class Report:
    """What was looked at, and what was found. Lengths are in tokens where a tokenizer was used, else in characters."""

    name: str = ""
    rows: int | None = None
    samples: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    unit: str = "tokens"
    lengths: Counter[int] = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)

    def find(self, check: str, where: str, count: int = 1, detail: str = "", advice: str = "") -> None:
        """Counts a finding; the first of its kind is remembered."""
        if not count:
            return
        found = self.findings.get(check)
        if found is None:
            first = f"{where}: {detail}" if detail else where
            found = self.findings[check] = Finding(check, 0, first, advice or ADVICE.get(check, REJECTED))
        found.count += count

    @property
    def problems(self) -> list[Finding]:
        return sorted((f for f in self.findings.values() if f.is_problem), key=lambda f: -f.count)

    @property
    def notes(self) -> list[Finding]:
        return sorted((f for f in self.findings.values() if not f.is_problem), key=lambda f: -f.count)

    def quantiles(self) -> dict[str, int]:
        """Lengths: the least, the median, what 90 and 99 of 100 do not exceed, the most."""
        ordered = sorted(self.lengths.items())
        total = sum(self.lengths.values())
        out = {}
        for name, share in (("min", 0.0), ("median", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("max", 1.0)):
            seen = 0
            for length, count in ordered:
                seen += count
                if seen >= max(1, share * total):
                    out[name] = length
                    break
        return out

    def as_json(self) -> dict[str, Any]:
        share = self.supervised_tokens / self.tokens if self.tokens else None
        return {"name": self.name, "rows": self.rows, "samples": self.samples, "tokens": self.tokens,
                "supervised_tokens": self.supervised_tokens, "mask_share": share, "length_unit": self.unit,
                "lengths": self.quantiles(), "problems": [vars(f) for f in self.problems],
                "notes": [vars(f) for f in self.notes]}
