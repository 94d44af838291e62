"""Every golden chat, with and without generation tags in the template."""
import contextlib
import io
import json
import unittest

from support import GOLDEN, Scratch

from percheron_prepare import golden


class GoldenTest(unittest.TestCase):
    def test_every_stored_case_passes(self) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = golden.main([str(GOLDEN)])
        self.assertEqual(code, 0, out.getvalue())
        self.assertIn("78 of 78 cases passed", out.getvalue())

    def test_a_wrong_mask_fails(self) -> None:
        scratch = Scratch()
        self.addCleanup(scratch.close)
        folder = scratch.model("llama3")
        cases = json.loads((GOLDEN / "llama3" / "cases.json").read_text(encoding="utf-8"))
        cases["cases"][0]["mask"][0] = 1
        (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = golden.main([str(folder)])
        self.assertEqual(code, 1)
        self.assertIn("13 passed, 1 failed", out.getvalue())


if __name__ == "__main__":
    unittest.main()
