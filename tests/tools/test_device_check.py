"""tools/device_check with programs that only pretend: nvidia-smi, the tests, the benchmarks."""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "tools", "device_check")

GPU = 'echo "NVIDIA H200, 580.1, 143771"'
TESTS = 'echo "[  PASSED  ] 7 tests."'
GOLDEN = """case $2 in cuda:0) d=2e-3 ;; *) d=1e-3 ;; esac
echo "PASS tests/golden_data/steps/a.safetensors (eagle3)"
echo "  ok  loss: $d of 4e-3"
echo "  ok  fc.weight: 1e-4 of 4e-3" """
CAPTURE = """case "$*" in *capture*) ratio='"of_without": "0.98", ';; esac
echo "{$ratio\\"tokens\\": 2048, \\"wall_seconds\\": [0.3, 0.1, 0.2]}\""""

BENCH = """echo '{"case": "training", "tokens": 2048, "wall_seconds": [0.3, 0.1, 0.2]}'"""

KERNELS = """for file; do :; done; line=0
while read -r run; do echo "{\\"line\\": $line, \\"ms\\": 0.5}"; line=$((line + 1)); done < $file"""


class DeviceCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.environment = {}
        self.build = os.path.join(self.folder, "build")
        self.path = os.path.join(self.folder, "path")
        self.out = os.path.join(self.folder, "out")
        self.fake("libpercheron_cuda.so", "")
        self.fake("kernels_test", TESTS)
        self.fake("golden_test", GOLDEN)
        self.fake("drafter_bench", BENCH)
        self.fake("target_bench", CAPTURE)
        self.fake("device_bench", KERNELS)
        self.tool("nvidia-smi", GPU)
        self.tool("compute-sanitizer", 'while [ "$1" != --error-exitcode ]; do shift; done; shift 2; exec "$@"')

    def script(self, path, text):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text + "\n")
        os.chmod(path, 0o755)

    def fake(self, name, text):
        self.script(os.path.join(self.build, "bin", name), text)

    def tool(self, name, text):
        self.script(os.path.join(self.path, name), text)

    def check(self, *words):
        environment = dict(os.environ, PATH=self.path + ":/usr/bin:/bin", **self.environment)
        command = [sys.executable, SCRIPT, "--build", self.build, "--out", self.out, *words]
        self.done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=100)
        self.assertEqual(self.done.stderr, "")
        with open(os.path.join(self.out, "device_check.json"), encoding="utf-8") as file:
            self.results = json.load(file)
        self.steps = {row["name"]: row for row in self.results["steps"]}
        return self.done.returncode

    def assert_status(self, name, status, reason=""):
        self.assertEqual(self.steps[name]["status"], status, self.steps[name])
        self.assertIn(reason, self.steps[name]["reason"])

    def test_runs_every_step_and_writes_what_it_found(self):
        self.assertEqual(self.check("--target", "/some/model"), 0, self.done.stdout)
        unusual = [row for row in self.results["steps"] if row["status"] != "ok" and "PyTorch" not in row["name"]]
        self.assertEqual(unusual, [], self.done.stdout)
        self.assertEqual(self.results["device"], {"name": "NVIDIA H200", "driver": "580.1", "memory_mib": 143771})
        self.assertEqual(self.results["golden"]["cuda:0"], {"a.safetensors": 0.5})
        self.assertEqual(self.results["golden"]["emulated:0"], {"a.safetensors": 0.25})
        self.assertIn("a.safetensors                                  0.500       0.250       0.250", self.done.stdout)
        row = {"model": "Qwen3-8B", "work": "dflash 2048", "kernel": "whole", "ms": 200.0, "tokens_per_s": 10240.0}
        self.assertIn(row, self.results["measured"])
        self.assertEqual({row["work"] for row in self.results["measured"] if row["kernel"] == "whole"},
                         {"dflash 2048", "dflash 4096", "eagle3 2048", "eagle3 4096", "capture 8x2048",
                          "captures to host 8x2048", "dflash 2048 without graphs", "eagle3 2048 without graphs"})
        ratios = {row["work"]: row["of_without"] for row in self.results["measured"] if "of_without" in row}
        self.assertEqual(ratios, {"captures to host 8x2048": 0.98})
        self.assertIn("0.98 of the throughput without", self.done.stdout)

    def test_adds_up_the_operations_of_a_kernel(self):
        self.check()
        found = {(row["work"], row["kernel"]): row["ms"] for row in self.results["measured"]}
        self.assertEqual(found["dflash 2048", "qkv, weight"], 5 * 0.5)  # once in each of five layers
        self.assertEqual(found["dflash 2048", "rms_norm, forward"], 10 * 0.5)
        self.assertEqual(found["capture 8x2048", "attention, forward"], 36 * 0.5)
        self.assertEqual(found["eagle3 2048", "head, forward"], 7 * 0.5)
        with open(os.path.join(self.out, "kernels_dflash_2048.txt"), encoding="utf-8") as file:
            lines = file.read().splitlines()
        self.assertIn("linear forward 8192 4096 151936", lines)
        self.assertIn("attention backward 32 8 128 blocks 512 16 2048", lines)
        self.fake("device_bench", "echo '{\"line\": 0, \"ms\": 1}'")
        self.assertEqual(self.check(), 1)
        self.assert_status("kernels of dflash 2048", "failed", "its output can't be read: KeyError(1)")

    def test_runs_pytorch_where_it_is_installed(self):
        self.check()
        self.assert_status("PyTorch's kernels of dflash 2048", "skipped", "has no torch")
        modules = os.path.join(self.folder, "modules")
        os.makedirs(os.path.join(modules, "torch", "nn", "attention"))
        for name in ("torch", "torch/nn", "torch/nn/attention"):
            with open(os.path.join(modules, name, "__init__.py"), "w", encoding="utf-8") as file:
                file.write("bfloat16 = 'bf16'\n")
        with open(os.path.join(modules, "torch", "nn", "functional.py"), "w", encoding="utf-8") as file:
            file.write("")
        with open(os.path.join(modules, "torch", "nn", "attention", "flex_attention.py"), "w", encoding="utf-8") as file:
            file.write("import json, sys\n"
                       "for line, _ in enumerate(open(sys.argv[-1])):\n"
                       "    print(json.dumps({'line': line, 'ms': None if line == 0 else 2.0}))\n"
                       "sys.exit(0)\n")
        self.environment["PYTHONPATH"] = modules
        self.assertEqual(self.check(), 0, self.done.stdout)
        self.assert_status("PyTorch's kernels of dflash 2048", "ok")
        found = {(row["work"], row["kernel"]): row["ms"] for row in self.results["pytorch"]}
        self.assertEqual(found["dflash 2048", "qkv, weight"], 5 * 2.0)
        self.assertNotIn(("dflash 2048", "fusion of captures, forward"), found)  # its first line, which has no time

    def test_the_json_has_its_schema(self):
        self.check()
        types = {"schema": str, "started": str, "device": dict, "budget_s": float, "seconds": float, "steps": list,
                 "golden": dict, "measured": list, "pytorch": list, "peers": list}
        self.assertEqual({key: type(value) for key, value in self.results.items()}, types)
        self.assertEqual(self.results["schema"], "percheron device_check 1")
        for row in self.results["steps"]:
            self.assertEqual(set(row), {"name", "status", "reason", "seconds", "limit_s"})
            self.assertIn(row["status"], {"ok", "failed", "timeout", "skipped"})
            self.assertEqual(row["reason"] == "", row["status"] == "ok")

    def test_the_roofline_takes_its_json(self):
        self.check()
        script = os.path.join(ROOT, "bench", "cuda_roofline.py")
        command = [sys.executable, script, "--measured", os.path.join(self.out, "device_check.json")]
        page = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.assertRegex(page, r"\| Qwen3-8B \| DFlash, .* 2,048 tokens .*\| 200\.0 \|")

    def test_skips_everything_without_a_gpu(self):
        for smi, why in (("exit 9", "nvidia-smi says: it printed nothing"),
                         ("echo No devices were found", "nvidia-smi says: No devices were found")):
            self.tool("nvidia-smi", smi)
            self.assertEqual(self.check(), 0)
            self.assertEqual({row["status"] for row in self.results["steps"]}, {"skipped"})
            for row in self.results["steps"]:
                self.assertIn("no GPU: " + why, row["reason"])
            self.assertIsNone(self.results["device"])

    def test_a_failing_step_is_named_and_the_others_run(self):
        self.fake("kernels_test", 'echo "rows_test.cc:9: Failure"; echo; exit 1')
        self.assertEqual(self.check(), 1)
        self.assert_status("kernel tests", "failed", "rows_test.cc:9: Failure (exit status 1; see ")
        self.assert_status("memcheck", "failed")
        self.assert_status("golden files on cuda:0", "ok")
        self.assert_status("dflash step, 2048 tokens", "ok")
        self.assertIn("not ok: kernel tests, memcheck, racecheck, synccheck", self.done.stdout)

    def test_tests_that_select_nothing_are_no_check(self):
        self.fake("kernels_test", 'echo "[  PASSED  ] 0 tests."')
        self.assertEqual(self.check(), 1)
        self.assert_status("kernel tests", "failed", "no test ran")

    def test_output_that_is_none_fails_its_step(self):
        self.fake("golden_test", "echo nothing")
        self.fake("drafter_bench", "echo '{'")
        self.assertEqual(self.check(), 1)
        self.assert_status("golden files on cpu:0", "failed", "no case in golden_test's output")
        self.assert_status("dflash step, 2048 tokens", "failed", "its output can't be read")

    def test_ends_what_takes_too_long_with_all_that_it_started(self):
        left = os.path.join(self.folder, "left")
        self.fake("kernels_test", f"(sleep 6; touch {left}) & sleep 60")
        self.assertEqual(self.check("--budget", "5"), 1)
        self.assert_status("kernel tests", "timeout", "not done after 5 s")
        self.assert_status("golden files on cuda:0", "skipped", "the budget of 5 s is used up")
        alive = subprocess.run(["pgrep", "-f", left], capture_output=True, check=False)
        self.assertNotEqual(alive.returncode, 0, "a child of the step is still there")

    def test_a_gpu_that_vanishes_ends_the_visit(self):
        gone = os.path.join(self.folder, "gone")
        self.tool("nvidia-smi", f'[ -e {gone} ] && {{ echo "Unable to determine the device handle"; exit 15; }}; {GPU}')
        self.fake("drafter_bench", f"touch {gone}; exit 1")
        self.assertEqual(self.check(), 1)
        self.assert_status("kernel tests", "ok")
        self.assert_status("dflash step, 2048 tokens", "failed")
        self.assert_status("eagle3 step, 2048 tokens", "skipped", "the GPU vanished during 'dflash step, 2048 tokens'")

    def test_says_what_a_build_lacks(self):
        os.remove(os.path.join(self.build, "bin", "libpercheron_cuda.so"))
        os.remove(os.path.join(self.build, "bin", "golden_test"))
        self.assertEqual(self.check(), 0)
        self.assert_status("kernel tests", "skipped", "libpercheron_cuda.so")
        self.assert_status("golden files on cpu:0", "skipped", "bin/golden_test")

    def test_times_peers_where_their_scripts_are(self):
        self.assertEqual(self.check("--peers"), 0)
        self.assert_status("peers, 2048 tokens", "skipped", "no --peers-directory")
        directory = os.path.join(self.folder, "peers")
        os.makedirs(directory)
        with open(os.path.join(directory, "run_peers.py"), "w", encoding="utf-8") as file:
            file.write(
                "import json, shlex, sys\n"
                "words = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
                "own = shlex.split(words['--own-command'].format(method='dflash', seq=2048))\n"
                "assert own[-1] == '--on-command' and own[own.index('--seq') + 1] == '2048', own\n"
                "import os; os.makedirs(words['--out'], exist_ok=True)\n"
                "rows = [c.split(':') for c in words['--group'].split(',')]\n"
                "with open(words['--out'] + '/peers.jsonl', 'a') as f:\n"
                "    for p, m, s in rows: f.write(json.dumps(dict(peer=p, method=m, seq=int(s), step_ms=1.5)) + chr(10))\n"
            )
        self.assertEqual(self.check("--peers", "--peers-directory", directory, "--budget", "900"), 0, self.done.stdout)
        self.assertEqual(len(self.results["peers"]), 12)
        self.assertIn({"peer": "own", "method": "eagle3", "seq": 4096, "step_ms": 1.5}, self.results["peers"])

    def test_packs_the_programs_with_their_libraries(self):
        for name in ("kernels_test", "golden_test", "device_bench", "drafter_bench", "target_bench", "libpercheron_cuda.so"):
            target = os.path.join(self.build, "bin", name)
            os.remove(target)
            os.symlink(os.path.realpath(sys.executable), target)
        path = os.path.join(self.folder, "check.tgz")
        words = [sys.executable, SCRIPT, "--build", self.build, "--pack", path]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with tarfile.open(path) as archive:
            names = archive.getnames()
        self.assertIn("check/tools/device_check", names)
        self.assertIn("check/bin/kernels_test", names)
        self.assertIn("check/bench/model_configs/Qwen3-8B/config.json", names)
        self.assertFalse([name for name in names if "/libc.so" in name or "libstdc++" in name])
        os.remove(os.path.join(self.build, "bin", "golden_test"))
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("golden_test missing: build percheron_cuda kernels_test", done.stderr)


if __name__ == "__main__":
    unittest.main()
