# Two commands: `make demo` and `make test`. Each installs what it needs into .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: install demo test test-all check format bench screenshots clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fsdp-tui needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1 || echo missing): run make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "making .venv failed: on Debian and Ubuntu, apt install python3-venv"; exit 1; }
	@echo "installing into .venv (torch included: about a minute) ..."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,dev]'
	@touch $@

demo: install
	$(BIN)/fsdp-tui demo $(ARGS)

# Two processes, each a file at a time: what a file has started serves all of its tests. Then those that want the machine for
# themselves. ARGS that choose tests may choose none of either (5).
PYTEST := $(BIN)/python -m pytest
TOGETHER := -n 2 --dist loadfile --no-loadscope-reorder

test: install
	$(PYTEST) $(TOGETHER) -m 'not matrix and not alone' $(ARGS) || [ $$? = 5 ]
	$(PYTEST) -m 'not matrix and alone' $(ARGS) || [ $$? = 5 ]

test-all: install $(VENV)/.frameworks
	$(PYTEST) $(TOGETHER) -m 'not alone' $(ARGS) || [ $$? = 5 ]
	$(PYTEST) -m alone $(ARGS) || [ $$? = 5 ]

$(VENV)/.frameworks: $(VENV)/.installed
	@echo "installing the frameworks that tests train with ..."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[frameworks]'
	@touch $@

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install
	$(BIN)/python -m benchmarks $(ARGS)

screenshots: install
	$(BIN)/python -m benchmarks.screenshots

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info .mypy_cache .pytest_cache .ruff_cache
