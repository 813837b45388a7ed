# Hydra overrides stand straight on the line, with any value:
#     make train model/position=rotary 'search.list=[1, 2]' 'note=a; b & ${c}'
# What has no "=" goes into ARGS:
#     make train ARGS='-m ~callbacks.ema' seed=1,2,3
# make takes each word with a "=" for a variable of its own. Nothing here expands these variables and no shell sees them:
# src/diglot/commands/from_make.py reads them from MAKEFLAGS. make itself cannot carry, so that ARGS has to: a key with
# ":", "#", "$" or a blank; an operator other than "=" (+= ?= := !=); blanks at the start of a value. It keeps only the
# last of two words with the same key.

ifeq ($(filter oneshell,$(.FEATURES)),)
$(error GNU make 3.82 or later is needed, and this is $(MAKE_VERSION))
endif

# make would expand an override, $(shell ...) and all, to hand it to the recipes as an environment variable.
$(foreach .name,$(.VARIABLES),$(if $(findstring command line,$(origin $(.name))),\
    $(if $(filter PIP_%,$(.name)),,$(eval unexport $$(.name)))))

# The interpreter that .venv is made with: the first of these that is Python 3.11 to 3.14.
PYTHON ?= python3 python3.12 python3.11 python3.13 python3.14
# Tests run side by side; those of a file stay together, for they share what takes long to make.
override PARALLEL := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# What `make tensorboard` shows.
LOGDIR ?= runs

override SHELL := /bin/sh
override .SHELLFLAGS := -ec
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help setup prepare doctor train sweep replay average evaluate translate score export convert certify \
	verify tensorboard test test-all test-reliability soak conformance check docs lock benchmark clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

setup: .venv/.ready ## Make .venv and install everything in it (the other targets do this when needed)
	@echo '.venv is ready.'

prepare: ## Fetch a corpus and train its tokenizer: make prepare [data=...]
doctor: ## Check the data for problems: make doctor [data=...]
train: ## Train, evaluate, and print the next commands to type: make train [override ...]
sweep: ## Train once for each of several choices: make sweep sweep=positions, make sweep model.n_heads=2,4
replay: ## Repeat a recorded update of a run, and show where its loss comes from: make replay record=FILE
average: ## Average checkpoints into one: make average checkpoint=FOLDER output=FILE [which=last|best n=5]
evaluate: ## Score a checkpoint: make evaluate checkpoint=PATH [data=...]
translate: ## Translate lines from standard input: make translate checkpoint=PATH [input=... output=...]
score: ## Compute the log-probability of given translations: make score checkpoint=PATH src=FILE tgt=FILE [output=...]
export: ## Write a model for CTranslate2, or as safetensors: make export checkpoint=PATH [format=... output=...]
convert: ## Rewrite checkpoints of format 1 (pickle) in format 2 (safetensors): make convert checkpoint=PATH
certify: ## Write a certificate of a finished run, or of several seeds: make certify checkpoint=FOLDER [output=...]
verify: ## Check a certificate: make verify certificate=FILE [checkpoint=FOLDER data=...]
prepare doctor train sweep replay average evaluate translate score export convert certify verify: .venv/.ready
	@exec .venv/bin/python -m diglot.commands.from_make $@

tensorboard: .venv/.ready ## Show the curves of all runs: make tensorboard [LOGDIR=runs]
	@exec .venv/bin/python -m diglot.commands.tensorboard '$(LOGDIR)'

test: .venv/.ready ## Run the tests, including the end-to-end tests
	@exec .venv/bin/python -m pytest $(PARALLEL) -m 'not exhaustive and not reliability'

test-all: .venv/.ready ## Run all automatic tests, with new random cases for property-based tests (long)
	@.venv/bin/python -m pytest $(PARALLEL) --hypothesis-profile=new -m 'not exhaustive and not reliability'
	exec .venv/bin/python -m pytest $(PARALLEL) --hypothesis-profile=new --dist load -m exhaustive

test-reliability: .venv/.ready ## Inject faults (kills, signals, full disks, hostile files), run several processes and the wheel
	@exec .venv/bin/python -m pytest $(PARALLEL) --dist load -m 'reliability and not exhaustive'

soak: .venv/.ready ## Kill runs at random and compare: make soak [kills=3000] [minutes=60] [seed=N] (long)
	@exec .venv/bin/python tests/reliability/soak.py

conformance: .venv/.ready ## Train every model variant to copy, reverse and sort (long; type it again to continue)
	@exec .venv/bin/python tests/conformance/learning.py

check: .venv/.ready ## Check style, formatting and types
	@.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

docs: .venv/.ready ## Make a site of README.md and docs/ in build/docs (installs the extra docs the first time)
	@if ! .venv/bin/python -c 'import furo, myst_parser, sphinx' 2> /dev/null; then
		.venv/bin/python -m pip install --quiet --disable-pip-version-check --use-pep517 -c constraints.txt -e '.[docs]'
	fi
	.venv/bin/python -m sphinx --quiet --fresh-env --fail-on-warning --nitpicky --conf-dir docs/site \
		--doctree-dir build/doctrees . build/docs
	echo 'The site is build/docs/index.html'

# What torch itself names the versions of (CUDA's packages, other ones for each build of torch) is not pinned.
lock: .venv/.ready ## Pin versions that pyproject.toml leaves open; to update one, remove its line in constraints.txt
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv/bin/python -m uv pip compile --quiet --universal --all-extras --python-version 3.11 --no-header --no-annotate \
		pyproject.toml --output-file constraints.txt > /dev/null
	sed -i.old -E '/^(cuda|nvidia|triton)/d' constraints.txt
	rm constraints.txt.old

benchmark: .venv/.ready ## Run the speed measurements in benchmarks/
	@set -- benchmarks/*.py
	if ! test -e "$$1"; then echo 'There is no benchmark in benchmarks/ yet.'; exit; fi
	for script; do echo "== $$script"; .venv/bin/python "$$script"; done

clean: ## Remove build products and tool caches, but not runs/, cache/ and .venv
	@rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis src/*.egg-info
	find src tests data benchmarks -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# The stamp is written last, so that a set-up that was cut short is taken up again: pip completes what it finds, and an
# environment without a working pip is made anew. All messages go to standard error: `make translate` writes to the other.
override FITS := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))

.venv/.ready: pyproject.toml constraints.txt
	@exec >&2 9< Makefile
	# One set-up at a time, where the system has flock; who waited may find the work done.
	if command -v flock > /dev/null; then flock 9; fi
	if test -e $@ && test -z "$$(find $^ -newer $@)"; then exit; fi
	rm -f $@
	if ! { .venv/bin/python -c '$(FITS)' && .venv/bin/python -m pip --version; } > /dev/null 2>&1; then
		python= others=
		for candidate in $(PYTHON); do
			if "$$candidate" -c '$(FITS)' 2> /dev/null; then python=$$candidate; break; fi
			if version=$$("$$candidate" --version 2> /dev/null); then others="$${others:+$$others, }$$candidate is $$version"; fi
		done
		if test -z "$$python"; then
			echo "Python 3.11 to 3.14 is needed, and none was found$${others:+ ($$others)}: name one with make PYTHON=/path/to/python3.12 ..."
			exit 1
		fi
		if ! "$$python" -c 'import venv, ensurepip' 2> /dev/null; then
			echo "$$python lacks its venv module: install it (Debian, Ubuntu: apt install python3-venv) and try again."
			exit 1
		fi
		"$$python" -m venv --clear .venv
	fi
	echo "Setting up .venv with $$(.venv/bin/python --version) (a few minutes the first time) ..."
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --use-pep517 --only-binary sentencepiece -c constraints.txt -e '.[dev]'
	touch $@
