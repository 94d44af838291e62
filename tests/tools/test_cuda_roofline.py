"""bench/cuda_roofline.py: the operations of a step against figures counted by PyTorch, and its page."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "bench", "cuda_roofline.py")
SPEC = importlib.util.spec_from_file_location("cuda_roofline", SCRIPT)
roofline = importlib.util.module_from_spec(SPEC)
sys.modules["cuda_roofline"] = roofline
SPEC.loader.exec_module(roofline)

QWEN = roofline.model_of(roofline.CONFIGS[0])


def run(*words):
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)


class Operations(unittest.TestCase):
    def test_steps_of_qwen3_8b_have_the_counted_operations(self):
        # TFLOP, of it attention, ms at 790 TFLOP/s; matrix products counted by PyTorch's own counter.
        counted = {
            "dflash 2048": ("71.5", "2.4", "90"),
            "dflash 4096": ("75.1", "4.8", "95"),
            "eagle3 2048": ("31.3", "0.8", "40"),
            "eagle3 4096": ("64.3", "3.4", "81"),
            "eagle3 frozen 2048": ("27.5", "0.8", "35"),
            "eagle3 frozen 4096": ("56.7", "3.4", "72"),
        }
        works = roofline.works_of(QWEN, roofline.Drafting())
        for key, expected in counted.items():
            work = works[key]
            attention = sum(k.flop for name, k in work.kernels.items() if name.startswith("attention, "))
            found = (f"{work.flop / 1e12:.1f}", f"{attention / 1e12:.1f}", f"{work.product_seconds * 1e3:.0f}")
            self.assertEqual(found, expected, key)

    def test_the_target_runs_14_5_gflop_a_token(self):
        work = roofline.capture(QWEN, 8, 2048)
        self.assertEqual(f"{work.flop / 16384 / 1e9:.2f}", "14.50")
        self.assertEqual(f"{16384 / work.product_seconds / 1e3:.1f}", "54.5")

    def test_adamw_of_dflash_takes_7_3_ms_of_memory(self):
        work = roofline.dflash(QWEN, roofline.Drafting(), 2048)
        adamw = work.kernels["adamw"]
        self.assertEqual(f"{adamw.bytes / 1e9:.1f} GB, {adamw.seconds * 1e3:.1f} ms", "31.5 GB, 7.3 ms")
        self.assertEqual(adamw.bound, "memory")

    def test_a_kernel_takes_the_longer_of_its_two_times(self):
        self.assertEqual(roofline.Kernel("a", 790e12, 1).seconds, 1)
        self.assertEqual(roofline.Kernel("a", 1, 8.6e12).seconds, 2)


class Page(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, content):
        path = os.path.join(self.folder.name, "file.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        return path

    def test_says_that_nothing_is_measured(self):
        done = run()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith("Measured columns are empty: no device visit yet."))
        self.assertIn("| Qwen3-8B | DFlash, 5 layers, 512 x 16, 2,048 tokens | 71.5 | 2.4 | 90 |", done.stdout)
        self.assertIn("### Llama-3.1-8B: EAGLE-3", done.stdout)

    def test_the_page_in_docs_is_what_the_script_prints(self):
        with open(os.path.join(ROOT, "docs", "measurements", "cuda.md"), encoding="utf-8") as file:
            page = file.read()
        if "no device visit yet" in page:
            self.assertIn(run().stdout.strip(), page)

    def test_fills_in_what_device_check_measured(self):
        rows = [
            {"model": "Qwen3-8B", "work": "dflash 2048", "kernel": "whole", "ms": 143.2},
            {"model": "Qwen3-8B", "work": "dflash 2048", "kernel": "adamw", "ms": 14.65},
        ]
        check = {"schema": "percheron device_check 1", "device": {"name": "NVIDIA H200"}, "measured": rows}
        done = run("--measured", self.file(json.dumps(check)))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Measured on: NVIDIA H200.", done.stdout)
        self.assertIn(" 143.2 |", done.stdout)
        self.assertRegex(done.stdout, r"\| adamw \| 0 \| 31\.4\d \| 7\.3\d \| memory \| 14\.65 \| 2\.15 TB/s, 50 % \|")

    def test_refuses_what_is_no_device_check(self):
        for content in ("{}", "no json", '{"schema": "other"}'):
            done = run("--measured", self.file(content))
            self.assertEqual(done.returncode, 1, content)
            self.assertTrue(done.stderr.startswith("error: "), done.stderr)
        done = run("--measured", "/no/such/file")
        self.assertIn("error: ", done.stderr)
        self.assertIn("/no/such/file", done.stderr)

    def test_names_the_key_that_a_config_lacks(self):
        done = run("--config", self.file('{"num_attention_heads": 4}'))
        self.assertEqual(done.returncode, 1)
        self.assertIn("lacks 'hidden_size'", done.stderr)


if __name__ == "__main__":
    unittest.main()
