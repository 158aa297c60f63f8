# Every target works on a fresh clone: the virtual environment is made on demand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Requirements with hashes; where it is set, as in the hosted workflows, nothing else is installed.
HASHES ?=
# Tests that write graphs. In a process that ran them, a fork for the worker of a data loader has ended in a segfault,
# so no other test shares one with them.
GRAPH_TESTS := $(wildcard tests/export/test_onnx_*.py) $(addprefix tests/,docs/test_encoder_doors.py \
	encoders/test_encode_arguments.py export/test_export_command.py export/test_readers.py \
	benchmarks/test_speed_cases.py)

.PHONY: help quickstart test test-all mutants behaviour quality small-models bench bench-report bench-gpu docs notebooks dist hashes release-check clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
ifdef HASHES
	$(BIN)/python -m pip install --quiet --require-hashes --requirement $(HASHES)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
else
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
endif
	@touch $@

quickstart: $(STAMP)  ## train, evaluate and export a small English-French encoder
	$(BIN)/hf-xlsr train quickstart --output_dir outputs/quickstart

test: $(STAMP)  ## the suite without slow tests, offline, on two processes
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow"

test-all: test  ## the suite, then the tests that rarely break and take long
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m slow $(GRAPH_TESTS:%=--ignore=%)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m slow $(GRAPH_TESTS)

mutants: $(STAMP)  ## put 300 small faults into the code, one by one; print those that no test notices (hours; resumable)
	$(BIN)/python tests/mutants.py

behaviour: $(STAMP)  ## write outputs/behaviour.json: what refactoring must not change
	$(BIN)/python tests/behaviour.py outputs/behaviour.json

quality: $(STAMP)  ## ruff, ruff format, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/typecheck.py

small-models: $(STAMP)  ## prune and distil the small encoders; needs HF_XLSR_DATA and HF_XLSR_ENCODERS
	set -e; e5="$$HF_XLSR_ENCODERS/e5-small"; \
	student() { run=$$1; start=outputs/$$2; shift 2; \
		test -d $$start || $(BIN)/hf-xlsr prune "$$@" --output $$start && $(BIN)/hf-xlsr train $$run; }; \
	student small_en_fr start_en_fr "$$e5" --recipe small_en_fr --layers 0,11 --vocab-size 11000; \
	student small_en_de start_en_de "$$e5" --recipe small_en_de --layers 0,11 --vocab-size 10600; \
	student small_15 start_15 "$$e5" --recipe small_15 --layers 0,3,7,11 --vocab-size 45000; \
	$(BIN)/hf-xlsr train small_15_long; \
	student small_15_nano start_15_nano outputs/small_15_long/model --recipe small_15 --layers 0,3; \
	student small_15_base start_15_base "$$e5" --recipe small_15; \
	$(BIN)/hf-xlsr train small_15_longer; \
	$(BIN)/hf-xlsr train small_15_mini

bench: $(STAMP)  ## speed and memory against FAISS and sentence-transformers
	for case in methods mining queue_info_nce hictl cmlm exports; do \
		$(BIN)/python -m benchmarks $$case || exit 1; \
	done

bench-report: $(STAMP)  ## the ratios of all results of bench so far: a table, and a picture of each case
	$(BIN)/python -m benchmarks.history

bench-gpu: $(STAMP)  ## everything that needs a GPU, in resumable slices
	$(BIN)/python -m benchmarks.gpu

docs: $(STAMP)  ## the site of docs/, in build/site
	rm -rf build/lib docs/notebooks && $(BIN)/python setup.py -q build_py  # one hf_xlsr/ with modeling/ and trainers/ in it
	$(BIN)/jupyter nbconvert --log-level WARN --to markdown --output-dir docs/notebooks notebooks/*.ipynb
	perl -pi -e 's#\.\./docs/#../#g' docs/notebooks/*.md
	$(BIN)/python -m zensical build --strict

notebooks: $(STAMP)  ## run the notebooks and keep their outputs
	TQDM_DISABLE=1 PYTHONWARNINGS=ignore $(BIN)/jupyter nbconvert --to notebook --execute --inplace notebooks/*.ipynb

dist: $(STAMP)  ## build the wheel and the source distribution, each commit to the same bytes
	$(BIN)/python tests/release_check.py --versions --keep dist

hashes: $(STAMP)  ## write .github/requirements.txt, the hashes of what constraints.txt allows
	$(BIN)/uv pip compile pyproject.toml --extra dev --constraint constraints.txt --generate-hashes \
		--python-version 3.11 --python-platform x86_64-unknown-linux-gnu --no-header --no-emit-index-url --no-annotate \
		--quiet --output-file .github/requirements.txt

release-check: $(STAMP)  ## build, look at and try out the wheel with the lowest and newest versions of what it needs; compare speed
	$(BIN)/python tests/release_check.py --keep dist

clean:  ## remove the virtual environment and all outputs
	rm -rf $(VENV) outputs build *.egg-info
