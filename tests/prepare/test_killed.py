"""The short form of tests/e2e/prepare_killed.py, which makes its file and its kills larger."""
import os
import signal
import subprocess
import sys
import unittest

from support import GOLDEN, ROOT, Scratch

PACKAGE = ROOT / "tools" / "percheron_prepare"
LIMIT_S = 200.0


class KilledTest(unittest.TestCase):
    def test_some_megabytes_killed_at_random_moments_end_in_the_same_bytes(self) -> None:
        done = subprocess.run([sys.executable, str(ROOT / "tests" / "e2e" / "prepare_killed.py"), "--model",
                               str(GOLDEN / "qwen2.5"), "--megabytes", "6", "--kills", "4", "--keep-period-s", "0.05",
                               "--shard-bytes", "1M", "--memory-limit", "700"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertGreater(done.stdout.count("the same bytes"), 4)

    def test_ctrl_c_while_modules_are_loaded_shows_no_stack(self) -> None:
        scratch = Scratch()
        self.addCleanup(scratch.close)
        # Stands for a module of the package's: Ctrl-C comes while it is loaded.
        (scratch.path / "jinja2").mkdir()
        (scratch.path / "jinja2" / "__init__.py").write_text(
            "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n", encoding="utf-8")
        done = subprocess.run([sys.executable, "-m", "percheron_prepare", "--help"], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": f"{scratch.path}:{PACKAGE}"}, timeout=LIMIT_S,
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (-signal.SIGINT, "", ""))


if __name__ == "__main__":
    unittest.main()
