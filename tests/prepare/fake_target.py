"""Stands in for `percheron answer`: what it writes is a hash of the prompt, the sample key and the seed, whatever comes
beside it. Answers overtake each other, as they do where some are longer.

FAKE_STOP is the id that ends an answer, FAKE_IDS the ids that it is made of, FAKE_WEIGHTS what the weights are said to
be; a prompt of more than FAKE_CONTEXT ids is refused; after FAKE_FAIL_AFTER answers the device fails.
"""
import hashlib
import json
import os
import queue
import sys
import threading
import time
from typing import Any

LATE_S = 0.005


def answer_to(request: dict[str, Any], options: dict[str, str]) -> dict[str, Any]:
    stop, ids = int(os.environ["FAKE_STOP"]), json.loads(os.environ["FAKE_IDS"])
    prompt, limit = request["prompt"], int(options["--new-tokens"])
    if len(prompt) > int(os.environ.get("FAKE_CONTEXT", "100000")):
        return {"id": request["id"], "refused": "prompt_too_long", "detail": f"{len(prompt)} tokens"}
    text = json.dumps([prompt, request["sample_key"], options["--seed"]])
    digest = hashlib.sha256(text.encode()).digest()
    tokens = [ids[byte % len(ids)] for byte in digest[: 2 + digest[0] % 12]]
    if len(tokens) >= limit:
        return {"id": request["id"], "tokens": tokens[:limit], "stopped": False}
    return {"id": request["id"], "tokens": [*tokens, stop], "stopped": True}


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def read(lines: "queue.Queue[str | None]") -> None:
    for line in sys.stdin:
        lines.put(line)
    lines.put(None)


def main() -> None:
    options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
    fails_after = int(os.environ.get("FAKE_FAIL_AFTER", "-1"))
    say({"ready": True, "weights_hash": os.environ.get("FAKE_WEIGHTS", "w"), "context_max": 100000, "capacity": 4})
    lines: "queue.Queue[str | None]" = queue.Queue()
    threading.Thread(target=read, args=(lines,), daemon=True).start()
    waiting: list[dict[str, Any]] = []
    given = 0
    while True:
        try:
            line = lines.get(timeout=LATE_S)
        except queue.Empty:
            line = ""
        if line is None:
            return
        if line:
            waiting.append(answer_to(json.loads(line), options))
        while waiting and (not line or len(waiting) > 3):
            if given == fails_after:
                say({"error": "cpu:0: the device burns"})
                return
            say(waiting.pop(given * 7 % len(waiting)))
            given += 1
        time.sleep(0.0005)


if __name__ == "__main__":
    main()
