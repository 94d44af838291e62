"""The line that shows how far a run is."""
import io
import unittest

import support  # noqa: F401 - the package's path

from percheron_prepare.progress import ProgressLine


class ProgressTest(unittest.TestCase):
    def test_elsewhere_than_on_a_terminal_a_line_comes_now_and_then(self) -> None:
        now, stream = [100.0], io.StringIO()
        line = ProgressLine(1000, "regenerate", stream, plain_period_s=10.0, now=lambda: now[0])
        for second in range(31):
            now[0] = 100.0 + second
            line.show(400 + 10 * second, 10 * second, 5000 + 250 * second, second // 30)
        line.close()
        self.assertEqual(stream.getvalue().splitlines(), [
            "regenerate  50 %  0:50 left  100 rows  7,500 tokens  250 tokens/s",
            "regenerate  60 %  0:40 left  200 rows  10,000 tokens  250 tokens/s",
            "regenerate  70 %  0:30 left  300 rows  12,500 tokens  250 tokens/s  1 rejected"])

    def test_elsewhere_nothing_comes_unless_asked_for(self) -> None:
        stream = io.StringIO()
        ProgressLine(10, "prepare", stream, now=lambda: 1e9).show(5, 5, 5, 0)
        self.assertEqual(stream.getvalue(), "")


if __name__ == "__main__":
    unittest.main()
