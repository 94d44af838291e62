"""The short form of tests/e2e/prepare_killed.py, which makes its file and its kills larger."""
import subprocess
import sys
import unittest

from support import GOLDEN, ROOT

LIMIT_S = 200.0


class KilledTest(unittest.TestCase):
    def test_some_megabytes_killed_at_random_moments_end_in_the_same_bytes(self) -> None:
        done = subprocess.run([sys.executable, str(ROOT / "tests" / "e2e" / "prepare_killed.py"), "--model",
                               str(GOLDEN / "qwen2.5"), "--megabytes", "6", "--kills", "4", "--keep-period-s", "0.05",
                               "--shard-bytes", "1M", "--memory-limit", "700"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertGreater(done.stdout.count("the same bytes"), 4)


if __name__ == "__main__":
    unittest.main()
