# Every target makes the virtual environment that it needs, from Python (3.11 to 3.14) and the package
# index alone; a second run finds it ready. `make help` lists the targets.

# The first that runs and is new enough; `command -v` also finds pyenv's shims of missing versions.
PYTHON ?= $(or $(shell for python in python3.11 python3.12 python3.13 python3.14 python3; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& command -v "$$python" && break; done),python3)
DEV := .venv
DEV_BIN := $(DEV)/bin
DOCS := .venv-docs
LOCK := .venv-lock

# make serve: ONNX Runtime for `cpu`, `openvino` or `gpu`, the bundle or a model of `ml-decoder get`
# (with FROM, PRECISION, BACKGROUND, LOGIT_SCALE and LOGIT_BIAS, its options), and where to listen.
RUNTIME ?= cpu
DEVICE = $(or $(ML_DECODER_DEVICE),$(if $(filter gpu,$(RUNTIME)),auto,$(RUNTIME)))
BUNDLE ?= $(or $(addprefix bundles/,$(notdir $(MODEL))),$(ML_DECODER_BUNDLE),bundles/ml-decoder-lite0)
# Not `?=`: some environments have a HOST that is no address.
HOST = $(or $(ML_DECODER_HOST),127.0.0.1)
PORT ?= $(or $(ML_DECODER_PORT),8000)
SERVE := .venv-serve-$(RUNTIME)
# The hub is asked before anything is installed, unless the model's files or its bundle are here.
ASK := $(if $(MODEL),$(if $(FROM)$(wildcard $(BUNDLE)/manifest.json),,ask-hub))
option = $(if $($(2)),--$(1)="$($(2))")

# make bundle: the labelled photos (with caption_concepts, for the open head), others with labels
# that these lack, and where checkpoints and logs go.
DATA ?= data/coco18
OPEN_DATA ?= data/coco80
RUN ?= runs/ml-decoder-lite0

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Disables ONNX Runtime's telemetry.
export ORT_DISABLE_TELEMETRY := 1

.DEFAULT_GOAL := help
# An unfinished environment is made again the next time.
.DELETE_ON_ERROR:
.PHONY: help serve ask-hub test test-fast test-scale lint check format reference docs bundle lock clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

serve: $(SERVE)/.installed ## Serve a bundle (MODEL=NAME, RUNTIME=cpu|openvino|gpu, BUNDLE, HOST, PORT), no torch
	$(if $(MODEL),$(SERVE)/bin/ml-decoder get "$(MODEL)" --out="$(BUNDLE)" $(call option,from,FROM) \
		$(call option,precision,PRECISION) $(call option,background,BACKGROUND) \
		$(call option,logit-scale,LOGIT_SCALE) $(call option,logit-bias,LOGIT_BIAS))
	exec env ML_DECODER_BUNDLE="$(BUNDLE)" ML_DECODER_DEVICE=$(DEVICE) ML_DECODER_HOST=$(HOST) \
		ML_DECODER_PORT=$(PORT) $(SERVE)/bin/ml-decoder serve

# A process for each core, each with whole files, the short ones of tests/service last; more than
# eight processes would need too much memory for torch.
PARALLEL := -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

test: $(DEV)/.installed ## Run the tests (TESTS="tests/service -k batch" for some, COVERAGE=--cov)
	$(DEV_BIN)/python -m pytest $(PARALLEL) $(COVERAGE) $(TESTS)

test-fast: $(DEV)/.installed ## Run the tests of service, client and project, in less than three minutes
	$(DEV_BIN)/python -m pytest $(PARALLEL) tests/service tests/client tests/project

test-scale: $(DEV)/.ray ## Test replicas behind nginx and Ray at length (needs nginx and PostgreSQL)
	SCALE_TEST=full $(DEV_BIN)/python -m pytest tests/scale -m "slow or not slow"

lint: check ## The same, and look up known advisories on the network
	$(DEV_BIN)/python constraints/audit.py

check: $(DEV)/.installed ## Check style, formatting, types, the Dockerfile and the workflows
	$(DEV_BIN)/ruff check .
	$(DEV_BIN)/ruff format --check .
	$(DEV_BIN)/mypy
	$(DEV_BIN)/hadolint Dockerfile
	$(DEV_BIN)/zizmor --offline --quiet --min-severity medium .github

format: $(DEV)/.installed ## Format the code and apply the safe fixes
	$(DEV_BIN)/ruff check --fix-only .
	$(DEV_BIN)/ruff format .

reference: $(DEV)/.installed ## Write the generated files of docs/: OpenAPI, settings, command line
	$(DEV_BIN)/python -m tests.project.api_reference > docs/openapi.json
	$(DEV_BIN)/python -m tests.project.setting_reference > docs/settings.md
	$(DEV_BIN)/python -m tests.project.command_reference > docs/command-line.md

docs: $(DOCS)/.installed ## Build the site of docs/ in build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@echo "build/site is ready; its search needs a server: python3 -m http.server -d build/site 8001"

TRAIN = $(DEV_BIN)/python -m models.train --data $(DATA) --cache $(RUN)/cache
TRAIN_OPEN = $(DEV_BIN)/python -m models.train_open --data $(DATA) --cache $(RUN)/cache_open \
	--recipe models/recipes/open/lite0.toml
AVERAGE = $(DEV_BIN)/python -m models.average
WEIGHTS = model.safetensors

bundle: $(DEV)/.installed ## Train and export the default bundle (DATA, OPEN_DATA, RUN; hours on two cores)
	$(TRAIN) --recipe models/recipes/lite0.toml --out $(RUN)/first
	$(TRAIN) --recipe models/recipes/lite0_refine.toml --init $(RUN)/first/$(WEIGHTS) \
		--out $(RUN)/second
	$(AVERAGE) --out $(RUN)/middle.safetensors \
		$(RUN)/first/$(WEIGHTS)=0.4 $(RUN)/second/$(WEIGHTS)=0.6
	$(TRAIN) --recipe models/recipes/lite0_settle.toml --init $(RUN)/middle.safetensors \
		--out $(RUN)/third
	$(AVERAGE) --out $(RUN)/settled.safetensors --untouched 0.4 \
		$(RUN)/second/$(WEIGHTS)=0.4 $(RUN)/third/$(WEIGHTS)=0.6
	$(TRAIN_OPEN) --checkpoint $(RUN)/settled.safetensors --hold-out $(OPEN_DATA) --out $(RUN)/strict
	$(TRAIN_OPEN) --checkpoint $(RUN)/settled.safetensors --init $(RUN)/strict/open.safetensors \
		--epochs 4 --lr 1e-3 --warmup 0.15 --out $(RUN)/settled_open
	$(TRAIN) --recipe models/recipes/lite0_enlarge.toml --init $(RUN)/settled.safetensors \
		--out $(RUN)/fourth
	$(AVERAGE) --out $(RUN)/$(WEIGHTS) --untouched 0.2 \
		$(RUN)/settled.safetensors=0.5 $(RUN)/fourth/$(WEIGHTS)=0.5
	$(TRAIN_OPEN) --checkpoint $(RUN)/$(WEIGHTS) --init $(RUN)/settled_open/open.safetensors \
		--views 1 --epochs 3 --lr 1e-3 --warmup 0.15 --out $(RUN)/open
	$(DEV_BIN)/python -m export --checkpoint $(RUN)/$(WEIGHTS) --photos $(DATA) \
		--precision fp32,int8 --compact-weights --model-version 1.3.0 --license Apache-2.0 \
		--open-head $(RUN)/open/open.safetensors --label-set export/label_sets/everyday.json \
		--words export/label_sets/words.json --open-photos $(OPEN_DATA) --open-split train --out $(BUNDLE)

# The serving sets are resolved within the development set, so that all agree. They are complete lists with the hashes
# of all files, for every platform: `pip install --require-hashes --no-deps --requirement`. The development set is a
# constraint, for which pip allows no hashes next to an editable project; and its torch may be one for CPUs.
COMPILE := $(LOCK)/bin/uv pip compile --quiet --upgrade --no-annotate --no-emit-index-url \
	--custom-compile-command 'make lock' pyproject.toml
lock: $(LOCK)/.installed ## Pin the newest versions that fit, in constraints/
	$(COMPILE) --python-version 3.11.5 --python-platform x86_64-unknown-linux-gnu client/pyproject.toml \
		--extra dev --extra ray --output-file constraints/dev.txt
	printf '%s\n' build setuptools twine | $(patsubst pyproject.toml,-,$(COMPILE)) --constraint constraints/dev.txt \
		--generate-hashes --python-version 3.11 --python-platform x86_64-unknown-linux-gnu \
		--output-file constraints/release.txt
	set -e; for runtime in cpu gpu openvino; do echo setuptools | $(COMPILE) - --constraint constraints/dev.txt \
		--universal --python-version 3.11 --generate-hashes --extra bulk --extra fast --extra get --extra heif \
		--extra otel --extra postgres --extra "$$runtime" --output-file "constraints/serve-$$runtime.txt"; done

clean: ## Remove the environments and everything that tools leave behind
	rm -rf .venv .venv-* build dist *.egg-info client/build client/*.egg-info
	rm -rf .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

CHECK_PYTHON = @"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	|| { echo "Python 3.11 or newer is needed; name one with PYTHON=..." >&2; exit 1; }

ask-hub:
	$(CHECK_PYTHON)
	"$(PYTHON)" service/cli/models.py "$(MODEL)"

%/bin/python:
	$(CHECK_PYTHON)
	"$(PYTHON)" -m venv $*

$(DEV)/.installed: pyproject.toml client/pyproject.toml constraints/dev.txt | $(DEV)/bin/python
	$(DEV_BIN)/python -m pip install --quiet --constraint constraints/dev.txt \
		--editable '.[dev]' --editable ./client
	@touch $@

$(DEV)/.ray: $(DEV)/.installed
	$(DEV_BIN)/python -m pip install --quiet --constraint constraints/dev.txt --editable '.[dev,ray]'
	@touch $@

# The extra `docs` alone: that of development takes gigabytes.
$(DOCS)/.installed: constraints/dev.txt | $(DOCS)/bin/python
	$(DOCS)/bin/python -m pip install --quiet --constraint constraints/dev.txt mkdocs-material mkdocs-swagger-ui-tag
	@touch $@

$(LOCK)/.installed: | $(LOCK)/bin/python
	$(LOCK)/bin/python -m pip install --quiet 'uv>=0.13'
	@touch $@

$(SERVE)/bin/python $(SERVE)/.installed: | $(ASK)

# Every file that runs is one of the list, setuptools included, which makes the editable packages.
$(SERVE)/.installed: pyproject.toml client/pyproject.toml constraints/serve-$(RUNTIME).txt | $(SERVE)/bin/python
	$(SERVE)/bin/python -m pip install --quiet --require-hashes --no-deps \
		--requirement constraints/serve-$(RUNTIME).txt
	$(SERVE)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable . --editable ./client
	@touch $@
