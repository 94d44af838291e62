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

from percheron_prepare.model import Model  # noqa: E402
from percheron_prepare.options import Options  # noqa: E402
from percheron_prepare.output_paths import Output  # noqa: E402
from percheron_prepare.prepare import Job, Prepared, prepare  # noqa: E402
from percheron_prepare.shard import read_shard  # noqa: E402
from percheron_prepare.source import open_source  # noqa: E402


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str, **extra: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **extra}


QUESTION = [user("Hi! What is 12 + 345?"), assistant("12 + 345 = 357.")]


def run_job(model: Model, options: Options, source: Path, output: Path, **settings: Any) -> Prepared:
    """Prepares one file in this process."""
    job = Job(model, options, [source], Output(output), **{"processes": 1, **settings})
    return prepare(job, open_source([source]))


def samples_of(shard: Path) -> list[tuple[str, list[int], list[int]]]:
    """Names, ids and masks of a shard's samples."""
    tensors, _ = read_shard(shard)
    offsets, id_offsets, names = tensors["offsets"], tensors["id_offsets"], tensors["ids"].tobytes()
    return [(names[c:d].decode(), tensors["tokens"][a:b].tolist(), tensors["loss_mask"][a:b].tolist())
            for a, b, c, d in zip(offsets, offsets[1:], id_offsets, id_offsets[1:])]


def supervised_text(model: Model, ids: Iterable[int], mask: Iterable[int]) -> str:
    """What a row is trained to write."""
    return str(model.tokenizer.raw.decode([i for i, m in zip(ids, mask) if m], skip_special_tokens=False))


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
