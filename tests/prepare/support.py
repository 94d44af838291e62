"""What the tests of data preparation share: the package's path, golden model folders and throw-away files."""
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "percheron_prepare"))

GOLDEN = ROOT / "tests" / "golden_data" / "chat"


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str, **extra: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **extra}


QUESTION = [user("Hi! What is 12 + 345?"), assistant("12 + 345 = 357.")]


class Scratch:
    """A folder that goes away with the test."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name)

    def close(self) -> None:
        self._folder.cleanup()

    def model(self, family: str, **config: Any) -> Path:
        """A copy of a golden model folder with some entries of tokenizer_config.json replaced."""
        folder = self.path / family
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_bytes((GOLDEN / family / "tokenizer.json").read_bytes())
        settings = json.loads((GOLDEN / family / "tokenizer_config.json").read_text(encoding="utf-8"))
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **config}), encoding="utf-8")
        return folder

    def rows(self, rows: Iterable[Any], name: str = "in.jsonl") -> Path:
        """A JSONL file."""
        path = self.path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path
