"""What becomes of a row whose answers are made anew."""
import unittest
from typing import Any

from support import QUESTION, assistant, user

from percheron_prepare.conversation import Answer, Conversation
from percheron_prepare.rows import Chat, parse_row
from percheron_prepare.source_row import Rejected


def said(text: str, **extra: Any) -> Answer:
    return Answer(assistant(text), 3, **extra)


def answered(row: dict[str, Any], *answers: Answer) -> tuple[dict[str, Any], Conversation]:
    conversation = Conversation(row)
    for answer in answers:
        conversation.take(answer)
    assert conversation.is_done
    return conversation.result(), conversation


class ConversationTest(unittest.TestCase):
    def test_each_turn_is_asked_with_the_new_answers_before_it(self) -> None:
        system = {"role": "system", "content": "Be short."}
        conversation = Conversation({"messages": [system, user("a"), assistant("old 1"), user("b"), assistant("old 2")]})
        self.assertEqual(conversation.history, [system, user("a")])
        conversation.take(said("new 1"))
        self.assertEqual(conversation.history, [system, user("a"), assistant("new 1"), user("b")])
        conversation.take(said("new 2"))
        self.assertEqual(conversation.result(), {"messages": [system, user("a"), assistant("new 1"), user("b"),
                                                              assistant("new 2")], "complete": True})

    def test_turns_are_asked_with_what_prepare_renders_before_them(self) -> None:
        for row in ({"system": "Be short.", "messages": QUESTION}, {"system": "Be short.", "prompt": "a"},
                    {"system": "", "messages": QUESTION},
                    {"messages": None, "conversations": QUESTION}):
            with self.subTest(row=row):
                conversation = Conversation(row)
                asked = list(conversation.history)
                conversation.take(said("new"))
                parsed = parse_row(conversation.result(), 1)
                assert isinstance(parsed, Chat)
                self.assertEqual(parsed.messages, [*asked, assistant("new")])
                self.assertEqual(asked[0]["role"], "system" if row.get("system") else "user")

    def test_ids_keys_and_spelling_of_the_row_stay(self) -> None:
        row = {"id": 7, "conversations": [{"from": "human", "value": "a", "lang": "en"}, {"from": "gpt", "value": "old"}],
               "score": 0.5, "finish_reason": "length", "complete": False}
        result, _ = answered(row, said("new"))
        self.assertEqual(result, {"id": 7, "conversations": [{"from": "human", "value": "a", "lang": "en"},
                                                             {"from": "gpt", "value": "new"}],
                                  "score": 0.5, "complete": True})

    def test_prompts_and_questions_at_the_end_are_answered(self) -> None:
        for row, count in (({"id": "p", "prompt": "a"}, 1), ({"turns": ["a", "b"]}, 2), ({"messages": [user("a")]}, 1),
                           ({"messages": [*QUESTION, user("b")]}, 2),
                           ({"conversations": [{"from": "human", "value": "a"}]}, 1)):
            with self.subTest(row=row):
                result, conversation = answered(row, *[said(str(i)) for i in range(count)])
                self.assertEqual(conversation.answers, count)
                self.assertIsInstance(parse_row(result, 1), Chat)
                for key in ("id", "prompt", "turns"):
                    self.assertEqual(result.get(key), row.get(key))

    def test_two_answers_in_a_row_become_one(self) -> None:
        result, conversation = answered({"messages": [*QUESTION, assistant("And more."), user("b"), assistant("c")]},
                                        said("1"), said("2"))
        self.assertEqual(result["messages"], [QUESTION[0], assistant("1"), user("b"), assistant("2")])
        self.assertEqual(conversation.notes["answers_in_a_row_joined"], 1)

    def test_speculators_835_a_cut_answer_ends_the_chat_and_prepare_hears_of_it(self) -> None:
        result, conversation = answered({"messages": [*QUESTION, user("b"), assistant("c"), user("d"), assistant("e")]},
                                        said("1"), said("2", is_cut=True))
        self.assertEqual(result, {"messages": [QUESTION[0], assistant("1"), user("b"), assistant("2")],
                                  "complete": False})
        parsed = parse_row(result, 1)
        assert isinstance(parsed, Chat)
        self.assertFalse(parsed.complete)
        self.assertEqual(dict(conversation.notes), {"answers_cut_at_length": 1, "chats_ended_by_a_cut_answer": 1,
                                                    "turns_left_out": 1})

    def test_speculators_864_later_turns_are_asked_with_the_thoughts_before_them(self) -> None:
        conversation = Conversation({"messages": [*QUESTION, user("b"), assistant("c")]})
        thought = assistant("1", reasoning_content="So.")
        conversation.take(Answer(thought, 3))
        self.assertEqual(conversation.history[1], thought)
        conversation.take(said("2"))
        self.assertEqual(conversation.result()["messages"][1], thought)

    def test_old_thoughts_are_neither_asked_with_nor_kept(self) -> None:
        row = {"messages": [user("a"), assistant("old", reasoning_content="old", finish_reason="length")]}
        self.assertEqual(answered(row, said("new"))[0], {"messages": [user("a"), assistant("new")], "complete": True})

    def test_an_answer_that_calls_a_tool_ends_the_chat(self) -> None:
        call = {"type": "function", "function": {"name": "weather", "arguments": "{}"}}
        answer = Answer(assistant("", tool_calls=[call]), 3)
        result, conversation = answered({"tools": [call], "messages": [*QUESTION, user("b"), assistant("c")]}, answer)
        self.assertEqual(result["messages"], [QUESTION[0], assistant("", tool_calls=[call])])
        self.assertEqual(conversation.notes["chats_ended_by_a_tool_call"], 1)

    def test_a_turn_that_cannot_be_answered_ends_the_chat_or_rejects_the_row(self) -> None:
        conversation = Conversation({"messages": [*QUESTION, user("b"), assistant("c")]})
        with self.assertRaises(Rejected):
            conversation.end_early(Rejected("prompt_too_long"))
        conversation.take(said("1"))
        conversation.end_early(Rejected("prompt_too_long"))
        self.assertEqual(conversation.result(), {"messages": [QUESTION[0], assistant("1")], "complete": True})
        self.assertEqual(conversation.notes["chats_ended_by_prompt_too_long"], 1)

    def test_rows_that_cannot_be_made_anew_say_why(self) -> None:
        call = assistant("", tool_calls=[{"type": "function", "function": {"name": "f", "arguments": {}}}])
        for reason, row in (("starts_with_assistant", {"messages": [assistant("a"), user("b")]}),
                            ("tool_calls", {"messages": [user("a"), call]}),
                            ("tool_calls", {"messages": [user("a"), {"role": "tool", "content": "1"}, assistant("b")]}),
                            ("text_row", {"text": "x"}), ("token_row", {"input_ids": [1], "loss_mask": [1]}),
                            ("bad_messages", {"messages": "x"}), ("empty_conversation", {"messages": []}),
                            ("bad_message", {"messages": ["x"]}), ("unknown_role", {"messages": [{"role": "king"}]}),
                            ("bad_turns", {"turns": [1]}),
                            ("unsupported_content", {"messages": [user("a") | {"content": 5}]}),
                            ("bad_tools", {"messages": QUESTION, "tools": "["}),
                            ("bad_system", {"messages": QUESTION, "system": 5}),
                            ("two_system_prompts", {"messages": [{"role": "system", "content": "x"}, *QUESTION],
                                                    "system": "y"}), ("unknown_shape", {"q": "x"})):
            with self.subTest(row=row):
                with self.assertRaises(Rejected) as raised:
                    Conversation(row)
                self.assertEqual(raised.exception.reason, reason)


if __name__ == "__main__":
    unittest.main()
