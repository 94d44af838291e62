"""Checks chats, ids and masks against stored cases.

    python -m percheron_prepare.golden FILE|DIR...

A FILE is a cases.json of kind `chat_mask` beside tokenizer.json and tokenizer_config.json. A DIR holds these, or
folders that do.
Every case is also checked with the template's generation tags taken out, as most published templates have none.
"""
from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .chat_template import LITERAL_MARK, ChatTemplate, TemplateRefused, read_json
from .failure import Failure
from .loss_mask import ChatEncoder, MaskUnproven, Row
from .model import Model, load_model
from .template_facts import find_facts

KIND = "chat_mask"


def families(folders: list[str]) -> Iterator[Path]:
    """Folders with cases, the given ones, those of given files, or those right below. Raises Failure."""
    for folder in map(Path, folders):
        if folder.is_file():
            folder = folder.parent
        found = [folder] if (folder / "cases.json").exists() else sorted(p.parent for p in folder.glob("*/cases.json"))
        if not found:
            raise Failure(f"{folder} has no cases.json, here or one folder below")
        yield from found


def without_tags(model: Model) -> ChatEncoder:
    """The same model with a template that has no generation blocks."""
    source = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", model.template.source)
    template = ChatTemplate(source, model.template.special_tokens, model.template.now)
    return ChatEncoder(template, model.tokenizer, find_facts(template, model.tokenizer, model.facts.stop_ids, {}))


def expect(errors: list[str], what: str, got: Any, wanted: Any) -> None:
    if got != wanted:
        errors.append(f"{what}: {got!r}, expected {wanted!r}")


def expected_turn(case: dict[str, Any], turn: dict[str, Any]) -> Row:
    """The row of one turn; where it is the beginning of the whole row, the case does not repeat its ids."""
    prompt, completion = turn["prompt_tokens"], turn["completion_tokens"]
    whole = case["ids"]
    ids = whole[: prompt + completion] if turn["prefix_of_whole_row"] else turn["prompt_ids"] + turn["completion_ids"]
    return Row(ids, [0] * prompt + [1] * completion, turn["message"])


def check_turns(encoder: ChatEncoder, case: dict[str, Any], errors: list[str]) -> None:
    turns = list(encoder.turns(case["messages"]))
    expect(errors, "turns", [t.message for t in turns], [t["message"] for t in case["turns"]])
    for turn, wanted in zip(turns, case["turns"]):
        expect(errors, f"turn {turn.message}", encoder.turn_row(turn), expected_turn(case, wanted))


def check_tagged(model: Model, case: dict[str, Any]) -> list[str]:
    """Whole row, rows of turns, the automatic choice, and markers as text."""
    errors: list[str] = []
    encoder, messages = model.encoder, case["messages"]
    expect(errors, "text", encoder.render(messages, None).text, case["text"])
    expect(errors, "whole row", encoder.conversation_row(messages), Row(case["ids"], case["mask"]))
    check_turns(encoder, case, errors)
    whole_is_served = all(turn["prefix_of_whole_row"] for turn in case["turns"])
    expect(errors, "one row", len(encoder.rows(messages)) == 1 and encoder.rows(messages)[0].message is None,
           whole_is_served)
    if "ids_if_markers_in_content_are_text" in case:
        marked = [{**m, "content": model.tokenizer.mark_specials(m["content"], LITERAL_MARK)} for m in messages]
        expect(errors, "markers as text", encoder.conversation_row(marked).ids,
               case["ids_if_markers_in_content_are_text"])
    return errors


def check_untagged(encoder: ChatEncoder, case: dict[str, Any]) -> list[str]:
    """Without tags every turn is still exact; a whole row may be refused but not wrong."""
    errors: list[str] = []
    check_turns(encoder, case, errors)
    try:
        expect(errors, "whole row", encoder.conversation_row(case["messages"]), Row(case["ids"], case["mask"]))
    except MaskUnproven:
        rewritten = case["messages"][0]["role"] == "assistant" or \
            not all(turn["prefix_of_whole_row"] for turn in case["turns"])
        expect(errors, "whole row provable", False, not rewritten)
    return errors


def check_case(model: Model, untagged: ChatEncoder, case: dict[str, Any]) -> list[str]:
    """What is wrong with a case; empty when it passes."""
    try:
        if "refused" in case:
            return [f"rendered, expected a refusal: {model.encoder.render(case['messages'], None).text!r}"]
        return check_tagged(model, case) + [f"without tags, {e}" for e in check_untagged(untagged, case)]
    except TemplateRefused as error:
        return [] if str(error) == case.get("refused") else [f"refused: {error}"]
    except MaskUnproven as error:
        return [f"mask unproven: {error}"]


def main(arguments: list[str] | None = None) -> int:
    """Prints one line per family and one per failed case; 1 when anything failed or nothing was checked."""
    folders = sys.argv[1:] if arguments is None else arguments
    if not folders:
        print(__doc__)
        return 2
    try:
        return check(folders)
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 2


def check(folders: list[str]) -> int:
    failed = checked = 0
    for folder in families(folders):
        content = read_json(folder / "cases.json")
        if content.get("kind") != KIND:
            print(f"{folder.name}: kind {content.get('kind')!r} is not {KIND!r}: skipped")
            continue
        model = load_model(folder)
        untagged = without_tags(model)
        results = {case["name"]: check_case(model, untagged, case) for case in content["cases"]}
        bad = {name: errors for name, errors in results.items() if errors}
        checked, failed = checked + len(results), failed + len(bad)
        print(f"{folder.name}: {len(results) - len(bad)} passed, {len(bad)} failed")
        for name, errors in bad.items():
            print(f"  {name}: {'; '.join(errors)}")
    print(f"{checked - failed} of {checked} cases passed")
    return 0 if checked and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
