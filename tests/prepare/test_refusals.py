"""What the command refuses: one line that names the path, exit code 1, and nothing written or overwritten."""
import contextlib
import io
import json
import os
import shutil
import unittest
from pathlib import Path
from unittest import mock

from support import GOLDEN, QUESTION, Scratch

from percheron_prepare.__main__ import main


class RefusalsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = Scratch()
        self.addCleanup(self.scratch.close)
        self.path = self.scratch.path
        self.source = self.scratch.rows([{"messages": QUESTION}, {"text": "odd"}])
        self.output = self.path / "out.safetensors"

    def files(self) -> dict[str, bytes | None]:
        return {str(p.relative_to(self.path)): None if p.is_dir() else p.read_bytes() for p in self.path.rglob("*")}

    def refuse(self, *named: str, model: Path = GOLDEN / "qwen2.5", source: Path | None = None,
               output: Path | None = None) -> None:
        """Runs the command, which must fail with one line that has all of `named`, and change no file."""
        before, out, err = self.files(), io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["prepare", "--model", str(model), "--input", str(source or self.source),
                         "--output", str(output or self.output)])
        said = err.getvalue()
        self.assertEqual((code, len(said.splitlines()), out.getvalue()), (1, 1, ""), said)
        self.assertTrue(said.startswith("error: "), said)
        for text in named:
            self.assertIn(text, said)
        self.assertNotIn("Errno", said)
        self.assertEqual(self.files(), before)

    def test_the_input_is_not_overwritten(self) -> None:
        self.refuse("must end in .safetensors", output=self.source)
        chats = self.source.rename(self.path / "chats.safetensors")
        (self.path / "link.safetensors").symlink_to(chats)
        os.link(chats, self.path / "hard.safetensors")
        (self.path / "folder").symlink_to(self.path)
        for name in ("chats", "link", "hard", "folder/chats", f"../{self.path.name}/chats"):
            with self.subTest(name=name):
                self.refuse("same file", source=chats, output=self.path / f"{name}.safetensors")

    def test_the_side_file_does_not_overwrite_the_input(self) -> None:
        side = self.source.rename(self.path / "out.safetensors.rejected.jsonl")
        self.refuse("same file", source=side)

    def test_files_of_the_model_are_not_overwritten(self) -> None:
        model = self.scratch.model("qwen2.5")
        (model / "model.safetensors").write_bytes(b"weights")
        self.refuse(str(model), model=model, output=model / "model.safetensors")

    def test_other_endings_of_the_output_are_refused(self) -> None:
        for name in ("out.parquet", "out.jsonl", ".safetensors", "out.safetensors.tmp"):
            with self.subTest(name=name):
                self.refuse("must end in .safetensors", output=self.path / name)

    def test_an_output_that_cannot_be_written_is_refused(self) -> None:
        self.output.mkdir()
        self.refuse(f"{self.output} is a folder")
        self.output.rmdir()
        self.refuse(f"{self.source} is no folder", output=self.source / "out.safetensors")
        with mock.patch("percheron_prepare.output_paths.os.access", return_value=False):
            self.refuse("no permission", str(self.path))
        (self.path / "out.safetensors.rejected.jsonl").mkdir()
        self.refuse("rejected.jsonl is a folder")

    def test_a_failed_write_leaves_nothing(self) -> None:
        with mock.patch("percheron_prepare.shard.os.fsync", side_effect=OSError(28, "No space left on device")):
            for output in (self.output, self.path / "new" / "folder" / "out.safetensors"):
                self.refuse(f"can't write {output}: No space left on device", output=output)

    def test_an_input_that_is_no_file_is_refused(self) -> None:
        self.refuse("does not exist", source=self.path / "none.jsonl")
        self.refuse("no regular file", source=self.path)

    def test_an_unusable_model_folder_is_named(self) -> None:
        self.refuse(str(self.path / "none"), "no folder", model=self.path / "none")
        (self.path / "empty").mkdir()
        self.refuse(str(self.path / "empty" / "tokenizer.json"), "No such file", model=self.path / "empty")

    def test_a_damaged_file_of_the_model_is_named(self) -> None:
        for name, content in (("tokenizer.json", b"{\"a\":"), ("tokenizer.json", b"[]"), ("tokenizer.json", b"{}"),
                              ("tokenizer.json", b"\xff\xfe"), ("config.json", b"{\"a\":"), ("config.json", b"[]"),
                              ("config.json", b"{\"vocab_size\": \"x\"}"), ("config.json", b"\xff"),
                              ("config.json", b"{\"text_config\": 5}"), ("tokenizer_config.json", b"{"),
                              ("generation_config.json", b"nonsense"), ("chat_template.jinja", b"\xff")):
            with self.subTest(name=name, content=content):
                model = self.scratch.model("qwen2.5")
                (model / name).write_bytes(content)
                self.refuse(str(model / name), model=model)
                shutil.rmtree(model)

    def test_a_missing_or_broken_template_is_named(self) -> None:
        for template in (None, [{"name": 5}], "{% if %}"):
            with self.subTest(template=template):
                model = self.scratch.model("qwen2.5", chat_template=template)
                self.refuse(str(model), "template", model=model)

    def test_rows_without_use_leave_only_the_side_file(self) -> None:
        source = self.scratch.rows([{"text": "odd"}], "odd.jsonl")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = main(["prepare", "--model", str(GOLDEN / "qwen2.5"), "--input", str(source),
                         "--output", str(self.output)])
        self.assertEqual(code, 1)
        [side] = self.path.glob("out.safetensors*")
        self.assertEqual(json.loads(side.read_text(encoding="utf-8"))["reason"], "text_not_of_this_template")


if __name__ == "__main__":
    unittest.main()
