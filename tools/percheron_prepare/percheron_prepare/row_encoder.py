"""Makes samples of rows, for one model and one set of options."""
from __future__ import annotations

from collections import Counter

from .chat_template import LITERAL_MARK, Message, TemplateRefused
from .failure import Failure
from .loss_mask import MaskUnproven, Row, Thinking
from .model import Model
from .options import ConsecutiveUsers, CutAnswers, Markers, Options, Purpose, SystemPrompts, TooLong
from .rows import Chat, Parsed, Prompt, TextRow, TokenRow
from .source_row import Rejected
from .text_rows import TextRows
from .thoughts import without_thought

class RowTooLong(Failure):
    """A row is over the limit and the options say that this is an error."""


class RowEncoder:
    """Makes all samples of a row or none. `notes` counts what happened to rows that are used."""

    def __init__(self, model: Model, options: Options) -> None:
        self._model = model
        self._options = options
        self._text_rows: TextRows | None = None
        self.notes: Counter[str] = Counter()

    def samples(self, parsed: Parsed) -> list[tuple[str, Row]]:
        """Named samples. Raises Rejected or RowTooLong."""
        try:
            return [(name, self._fit(row)) for name, row in self._rows(parsed)]
        except TemplateRefused as error:
            raise Rejected("template_refused", str(error)) from error
        except MaskUnproven as error:
            raise Rejected(f"mask_unproven_{error.args[0]}", str(error.args[-1])) from error

    def _rows(self, parsed: Parsed) -> list[tuple[str, Row]]:
        prompts_only = self._options.purpose is Purpose.PROMPTS
        if isinstance(parsed, TokenRow):
            if prompts_only:
                raise Rejected("no_prompt", "ids made elsewhere do not tell where the prompt ends")
            require_supervision(parsed.mask)
            return [(parsed.id, Row(parsed.ids, parsed.mask))]
        if isinstance(parsed, Prompt):
            if not prompts_only:
                raise Rejected("no_assistant_turn", "a prompt without an answer; --prompts takes such rows")
            messages = self._treat_markers([{"role": "user", "content": parsed.turns[0]}])
            return [(parsed.id, unanswered(self._model.encoder.prompt(messages)))]
        if isinstance(parsed, TextRow):
            return self._of_text(parsed, prompts_only)
        chat = self._treated(parsed)
        if prompts_only:
            return [(chat.id, self._prompt_row(chat))]
        return self._training_rows(chat)

    def _of_text(self, parsed: TextRow, prompts_only: bool) -> list[tuple[str, Row]]:
        if prompts_only:
            raise Rejected("no_prompt", "preformatted text is for training only; give `messages`")
        if self._text_rows is None:
            self._text_rows = TextRows(self._model)
        row = self._text_rows.row(parsed.text)
        if self._options.last_turn_only:
            first = len(row.mask) - next((i for i, m in enumerate(reversed(row.mask)) if m), 0)
            while first and row.mask[first - 1]:
                first -= 1
            row = Row(row.ids, [0] * first + row.mask[first:])
        require_supervision(row.mask)
        return [(parsed.id, row)]

    def _treated(self, chat: Chat) -> Chat:
        """The chat as the options want it."""
        if not chat.complete:
            if self._options.cut_answers is CutAnswers.SKIP:
                raise Rejected("answer_cut_at_length", "`complete` is false or `finish_reason` is length")
            self.notes["answers_cut_at_length"] += 1
        messages = apply_users_policy(chat.messages, self._options.consecutive_users)
        messages = self._treat_system_prompts(messages)
        if self._options.thinking is Thinking.DROP:
            messages = [without_thought(m) if m["role"] == "assistant" else m for m in messages]
        return Chat(chat.id, self._treat_markers(messages), chat.tools, chat.complete)

    def _treat_system_prompts(self, messages: list[Message]) -> list[Message]:
        options = self._options
        if options.system_prompts is SystemPrompts.DROP:
            messages = [m for m in messages if m["role"] not in ("system", "developer")]
            if not messages or messages[0]["role"] == "assistant":
                raise Rejected("starts_with_assistant", "without its system prompt the first answer has no prompt")
        if options.default_system_prompt is not None and messages[0]["role"] not in ("system", "developer"):
            messages = [{"role": "system", "content": options.default_system_prompt}, *messages]
        return messages

    def _training_rows(self, chat: Chat) -> list[tuple[str, Row]]:
        if not any(message["role"] == "assistant" for message in chat.messages):
            raise Rejected("no_assistant_turn", "nothing to supervise")
        options = self._options
        if options.last_turn_only:
            rows = [self._last_turn(chat)]
        else:
            rows = self._model.encoder.rows(chat.messages, chat.tools, options.rows, chat.complete, options.thinking)
        for row in rows:
            require_supervision(row.mask)
        self.notes["chats_split_by_turn"] += len(rows) > 1
        return [(chat.id if row.message is None or len(rows) == 1 else f"{chat.id}#{row.message}", row)
                for row in rows]

    def _last_turn(self, chat: Chat) -> Row:
        last = max(i for i, message in enumerate(chat.messages) if message["role"] == "assistant")
        encoder = self._model.encoder
        turn = encoder.turn(chat.messages, last, chat.tools, self._options.thinking)
        return encoder.turn_row(turn, chat.complete or last + 1 < len(chat.messages))

    def _prompt_row(self, chat: Chat) -> Row:
        """The chat up to its last answer, and the answer. A chat that ends with a question has none."""
        if chat.messages[-1]["role"] == "assistant":
            return self._last_turn(chat)
        return unanswered(self._model.encoder.prompt(chat.messages, chat.tools))

    def _treat_markers(self, messages: list[Message]) -> list[Message]:
        tokenizer = self._model.tokenizer
        if not any(tokenizer.has_special(message["content"]) for message in messages):
            return messages
        self.notes["markers_in_content"] += 1
        if self._options.markers is Markers.SKIP:
            raise Rejected("markers_in_content")
        if self._options.markers is Markers.KEEP:
            return messages
        return [{**m, "content": tokenizer.mark_specials(m["content"], LITERAL_MARK)} for m in messages]

    def _fit(self, row: Row) -> Row:
        """Applies the length limits and checks the ids."""
        if max(row.ids) >= self._model.vocab_size:
            raise Rejected("id_out_of_range", f"id {max(row.ids)}, the vocabulary has {self._model.vocab_size}")
        if len(row.ids) < self._options.min_length:
            raise Rejected("too_short", f"{len(row.ids)} tokens, --min-length is {self._options.min_length}")
        limit = self._options.max_length
        if limit is None or len(row.ids) <= limit:
            return row
        detail = f"{len(row.ids)} tokens, the limit is {limit}"
        if self._options.too_long is TooLong.REFUSE:
            raise RowTooLong(detail)
        if self._options.too_long is TooLong.SKIP or not any(row.mask[:limit]):
            raise Rejected("too_long", detail)
        self.notes["rows_truncated"] += 1
        return Row(row.ids[:limit], row.mask[:limit], row.message)


def require_supervision(mask: list[int]) -> None:
    if not any(mask):
        raise Rejected("no_supervision", "no token of the row would be trained on")


def unanswered(ids: list[int]) -> Row:
    return Row(ids, [0] * len(ids))


def apply_users_policy(messages: list[Message], policy: ConsecutiveUsers) -> list[Message]:
    """Applies the policy to user turns in a row."""
    out: list[Message] = []
    for message in messages:
        if out and message["role"] == "user" and out[-1]["role"] == "user":
            if policy is ConsecutiveUsers.SKIP:
                raise Rejected("consecutive_users")
            if policy is ConsecutiveUsers.MERGE:
                out[-1] = {**out[-1], "content": out[-1]["content"] + "\n\n" + message["content"]}
                continue
        out.append(message)
    return out
