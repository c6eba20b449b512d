# make demo   environment, install, one whole search on embedded data, a network that timm loads, a page to look at
# make test   environment, install, lint, types, tests
# make clean  forget the environment and the demo

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test install install-test lint types clean

install: $(VENV)/.installed
install-test: $(VENV)/.installed-test

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

demo: install
	rm -rf demo
	$(BIN)/vitsearch search autoformer-tiny --strategy random --objective dss,snip --data digits --batch-size 4 \
	  --max-params 6M --trials 200 --seed 0 --out demo/run
	$(BIN)/vitsearch export demo/run#best --format timm --out demo/best
	$(BIN)/python -c 'import vitsearch.models, timm; \
	  n = timm.create_model("local-dir:demo/best", pretrained=True); \
	  print("timm loaded demo/best:", sum(p.numel() for p in n.parameters()), "parameters,", n.num_classes, "classes")'
	$(BIN)/vitsearch report demo/run --out demo/report.html

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install-test
	$(BIN)/mypy

test: install-test lint types
	$(BIN)/pytest -n 2

clean:
	rm -rf $(VENV) demo
