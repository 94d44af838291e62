"""bench/cuda_registers.py on what ptxas prints."""

import importlib.util
import os
import shutil
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SPEC = importlib.util.spec_from_file_location("cuda_registers", os.path.join(ROOT, "bench", "cuda_registers.py"))
registers = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(registers)

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN9percheron12_GLOBAL__N_16kernelILi64EEEvPf' for 'sm_90'
ptxas info    : Function properties for _ZN9percheron12_GLOBAL__N_16kernelILi64EEEvPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compile time = 1.000 ms
ptxas info    : Compiling entry function '_ZN9percheron12_GLOBAL__N_16kernelILi128EEEvPf' for 'sm_90'
ptxas info    : Function properties for _ZN9percheron12_GLOBAL__N_16kernelILi128EEEvPf
    16 bytes stack frame, 20 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
"""


class Registers(unittest.TestCase):
    def test_reads_every_instance(self):
        found = [instance[1:] for instance in registers.instances_of(PTXAS)]
        self.assertEqual(found, [(40, 0, 1024), (255, 44, 0)])

    @unittest.skipUnless(shutil.which("c++filt"), "no c++filt")
    def test_puts_the_instances_of_a_template_in_one_row(self):
        row = "| a.cu | kernel | 2 | 40 to 255 | 0 to 44 | 0 to 1024 |"
        self.assertEqual(registers.table({"a.cu": PTXAS})[-1], row)

    def test_takes_the_name_without_arguments_and_namespaces(self):
        for text, name in (
            ("void percheron::(anonymous namespace)::kernel<64, float>(float*)", "kernel"),
            ("percheron::(anonymous namespace)::copy_rows(percheron::Rows<int>)", "copy_rows"),
            ("void percheron::run<percheron::cuda::Body<float> >(percheron::Body)", "run"),
        ):
            self.assertEqual(registers.kernel_of(text), name)


if __name__ == "__main__":
    unittest.main()
