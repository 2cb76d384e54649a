# make demo    the main job on a small real store
# make test    what a change has to pass (about 10 minutes)
# make quick   one case of each test, nothing that is slow, no Spark (under 2 minutes)
# make test-core  one area with its slow tests; also test-serve, test-tiered, test-spark
# make test-exhaustive  everything: every bit, length and call; PART=3/8 takes the third of 8 parts
# make shares  tests/shares.toml: measure all tests, choose the cases that make test runs
# make lint    ruff and mypy
# make language-sample SEED=7  100 sentences of messages, docstrings and pages, drawn by chance
# make fuzz SECONDS=300  the random tests with fresh seeds, which it prints, until the time is over
# make kernel-asan  the compiled kernel on damaged records, its memory watched
# make wheel   an sdist, and from it a wheel with the kernel where a compiler is, into dist
# make binary  dist/rmqctl, one executable for machines without Python, and the demo run with it
# make image   a container image from the Dockerfile (ENGINE=podman), and the demo's first step in it
# make docs    the generated pages of docs/reference and docs/rmqctl.svg
# make site    the documentation as a web site in build/site; a broken link is an error
# make bench   figures beside their goals and peers, on stores it makes in BENCH (5 GiB, kept)
# make clean   everything made here
#
# PYSPARK=4.0.1 runs test-spark with that PySpark in place of the installed one
#
# PYTHON=python3.12 chooses the interpreter, VENV=dir the environment, JOBS=4 the test processes,
# SEED=N takes the tests of a run that said so again, ARGS='-k verify' goes to pytest or to the
# benchmark. Times are those of two cores; tests/README.md says what each suite holds.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BENCH ?= benchmarks/data
ARGS ?=
SEED ?=
SECONDS ?= 300
EXTRAS ?=
ENGINE ?= docker
PART ?=
PYSPARK ?=

PYTEST = $(if $(SEED),RMQCTL_SEED=$(SEED) )$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help venv demo test quick test-core test-serve test-tiered test-spark test-exhaustive shares lint kernel-asan language-sample fuzz wheel binary image docs site bench clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

# Two stamps, so that the demo does not wait for the tools of development.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "rmqctl needs Python 3.11 or newer: make PYTHON=python3.11" >&2; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "python3 -m venv failed: install python3-venv (apt install python3-venv)" >&2; exit 1; }
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml hatch_build.py $(wildcard rmqctl/kernel/*.p*x*)
	@echo "installing rmqctl into $(VENV)"
	@$(PIP) -e .
	@touch $@

# To compile all modules of all packages takes half a minute; those used are compiled when they are.
$(VENV)/.installed-dev: $(VENV)/.made pyproject.toml
	@echo "installing rmqctl and its development tools into $(VENV)"
	@$(PIP) --no-compile -e '.[dev]'
	@touch $(VENV)/.installed $@

venv: $(VENV)/.installed-dev

demo: $(VENV)/.installed
	@PATH="$(abspath $(BIN)):$$PATH" bash examples/demo.sh

test: venv
	$(PYTEST) $(ARGS)

quick: venv
	$(PYTEST) --quick $(ARGS)

test-core test-serve test-tiered test-spark: venv $(if $(PYSPARK),build/pyspark-$(PYSPARK))
	$(if $(PYSPARK),PYTHONPATH=$(abspath build/pyspark-$(PYSPARK)) )$(PYTEST) --area $(patsubst test-%,%,$@) $(ARGS)

build/pyspark-%: $(VENV)/.installed-dev
	@echo "installing PySpark $* into $@"
	@rm -rf $@ && mkdir -p build
	@$(PIP) --no-deps --no-compile --target $@ 'pyspark==$*'

shares: venv
	$(PYTEST) --write-shares $(ARGS)

test-exhaustive: venv
	$(PYTEST) --exhaustive $(if $(PART),--part $(PART)) $(ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/mypy

kernel-asan: venv
	@$(PIP) hatchling cython setuptools
	rm -rf build/asan && mkdir -p build/asan && cp -r rmqctl tests pyproject.toml build/asan
	rm -f build/asan/rmqctl/kernel/*.so
	$(BIN)/python hatch_build.py --sanitize build/asan/rmqctl/kernel
	cd build/asan && RMQCTL_KERNEL=compiled ASAN_OPTIONS=detect_leaks=0:handle_sigbus=0 \
	  LD_PRELOAD="$$(gcc -print-file-name=libasan.so)" $(abspath $(BIN))/python -m pytest \
	  tests/kernel/test_equal.py tests/kernel/test_rows.py tests/kernel/test_encode.py \
	  tests/kernel/test_json.py tests/kernel/test_texts.py tests/kernel/test_reading.py \
	  tests/kernel/test_sends.py tests/kernel/test_repeats.py tests/kernel/test_sound.py tests/kernel/test_sha256.py \
	  tests/checks/test_sound_pass.py tests/checks/test_mapped_log.py \
	  tests/repair/test_rebuild_in_one_loop.py \
	  tests/engine_write/test_per_message.py \
	  tests/scan/test_walk.py tests/scan/test_text.py $(ARGS)

language-sample: venv
	@$(BIN)/python -m tests.support.language $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz: venv
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

wheel: $(VENV)/.made
	@$(PIP) build
	$(BIN)/python -m build --outdir dist

# One file with Python and rmqctl in it, for Linux with this machine's C library or a younger one.
# EXTRAS=data,spark puts their packages in, too (it gets several times as large).
binary:
	$(PYTHON) -m venv --clear build/binary
	build/binary/bin/python -m pip install --quiet --disable-pip-version-check pyinstaller \
	  '.$(if $(EXTRAS),[$(EXTRAS)])'
	build/binary/bin/pyinstaller --noconfirm --log-level WARN --onefile --name rmqctl \
	  --collect-submodules rmqctl --collect-data rmqctl --collect-submodules isal \
	  --distpath dist --workpath build/pyinstaller --specpath build/pyinstaller \
	  build/binary/bin/rmqctl
	RMQCTL=dist/rmqctl bash examples/demo.sh >build/binary-demo.txt || \
	  { cat build/binary-demo.txt; exit 1; }
	@ls -l dist/rmqctl; echo "the demo ran with it"

image:
	$(ENGINE) build --tag rmqctl .
	$(ENGINE) run --rm --read-only --volume "$(CURDIR)/examples/store:/store:ro" rmqctl verify /store

docs: $(VENV)/.installed
	$(BIN)/python docs/generate_reference.py
	$(BIN)/python docs/generate_picture.py

site: $(VENV)/.installed
	@$(PIP) -e '.[docs]'
	$(BIN)/python docs/generate_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "the site is in build/site"

bench: $(VENV)/.installed
	@$(PIP) -e '.[bench]'
	$(BIN)/python -m benchmarks.run --dir $(BENCH) $(ARGS)

clean:
	rm -rf .venv .venv-ci build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
