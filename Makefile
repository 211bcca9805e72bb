# Two commands matter: `make demo` and `make test`. Both make what they need; a second run reuses it.

PYTHON    ?= $(notdir $(shell for p in python3.11 python3.12 python3; do command -v $$p && break; done))
VENV      := .venv
VENV_VLLM := .venv-vllm
VENV_CLIENTS := .venv-clients .venv-clients-crewai
BIN       := $(VENV)/bin
UV        := var/bootstrap/bin/uv

# Folders pip already takes wheels from, if they exist: PyTorch's CPU build must come from one of them or from
# TORCH_INDEX, never from PyPI's default (CUDA, several GB).
FIND_LINKS  := $(shell $(PYTHON) -m pip config list 2>/dev/null | sed -n "s/.*find-links='\(.*\)'/\1/p" | tr ' ' '\n' | sort -u)
LOCAL_LINKS := $(foreach folder,$(FIND_LINKS),$(if $(wildcard $(folder)/torch-*cpu*.whl),--find-links $(folder)))
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH_FROM  := $(if $(LOCAL_LINKS),$(LOCAL_LINKS),--extra-index-url $(TORCH_INDEX) --index-strategy unsafe-best-match)

# A demo or a test never asks a model hub for anything.
export HF_HUB_OFFLINE := 1
export TRANSFORMERS_OFFLINE := 1

# Hundreds of processes import the same modules: they compile them once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env model clients browser demo check test crash screenshots up down clean

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

env: $(VENV)/.complete $(VENV_VLLM)/.complete ## Both environments, from the pins in constraints/

model: env ## The base model, unpacked, converted and checked
	@$(BIN)/python -m services.worker.serving.model

clients: $(VENV_CLIENTS:=/.complete) ## Agents' SDKs, in environments of their own, for tests/contract

browser: ## Chromium, for the tests of the web pages
	@command -v chromium >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing chromium"; apt-get update -qq && apt-get install -y -qq chromium >/dev/null; \
	  else echo "install Chromium to run the tests of the web pages (they are skipped without it)"; fi; }

demo: model ## The whole loop on this machine; KEEP=1 leaves the UIs up
	@$(BIN)/evoplane demo $(if $(KEEP),--keep)

check: env ## Lint, types, import direction, quick tests
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check -q .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m "not stack" -n 3 --dist loadfile

test: model clients browser check ## Everything, with real vLLM, Prefect, MLflow and a browser
	$(BIN)/pytest -v -m stack

crash: env ## Hundreds of kills; writes the figures of docs/reliability.md
	$(BIN)/python -m tests.crash.thorough

screenshots: model browser ## Take the README's pictures again
	EVOPLANE_SCREENSHOTS=docs/images $(BIN)/pytest -v -m stack tests/loop

up: model ## Start the stack
	@$(BIN)/evoplane up

down: ## Stop the stack
	@$(BIN)/evoplane down

clean: ## Remove environments and everything written at run time
	rm -rf $(VENV) $(VENV_VLLM) $(VENV_CLIENTS) var

$(UV):
	@echo "getting uv"
	@$(PYTHON) -m venv var/bootstrap
	@var/bootstrap/bin/pip install -q uv || rm -f $(UV)

$(VENV)/.complete: pyproject.toml constraints/main-py311.txt constraints/environments-py311.txt | $(UV)
	@echo "making $(VENV): about 320 packages, 3.1 GB"
	@if [ -x $(UV) ]; then \
	  $(UV) venv -q --allow-existing --seed --python $(PYTHON) $(VENV) && \
	  $(UV) pip install -q --python $(BIN)/python --compile-bytecode $(TORCH_FROM) \
	    -c constraints/main-py311.txt -e '.[dev]'; \
	else \
	  $(PYTHON) -m venv $(VENV) && \
	  $(BIN)/pip install -q $(filter-out --index-strategy unsafe-best-match,$(TORCH_FROM)) \
	    -c constraints/main-py311.txt -e '.[dev]'; \
	fi
	@# beside it, without moving a pin: the environments of replay and training (AgentDojo, reasoning-gym)
	@if [ -x $(UV) ]; then $(UV) pip install -q --python $(BIN)/python --no-deps -r constraints/environments-py311.txt; \
	else $(BIN)/pip install -q --no-deps -r constraints/environments-py311.txt; fi || \
	  echo "AgentDojo and reasoning-gym could not be installed: what needs them is skipped"
	@touch $@

$(VENV_VLLM)/.complete: constraints/vllm-py311.txt | $(UV)
	@echo "making $(VENV_VLLM): vLLM for CPUs, 2.1 GB"
	@if [ -x $(UV) ]; then \
	  $(UV) venv -q --allow-existing --python $(PYTHON) $(VENV_VLLM) && \
	  $(UV) pip install -q --python $(VENV_VLLM)/bin/python --compile-bytecode --no-deps $(TORCH_FROM) \
	    -r constraints/vllm-py311.txt; \
	else \
	  $(PYTHON) -m venv $(VENV_VLLM) && \
	  $(VENV_VLLM)/bin/pip install -q --no-deps $(filter-out --index-strategy unsafe-best-match,$(TORCH_FROM)) \
	    -r constraints/vllm-py311.txt; \
	fi
	@# the command and the plug-ins look for a distribution called vllm; "cpu" in its version selects the CPU platform
	@site=$$(echo $(VENV_VLLM)/lib/python*/site-packages) && mkdir -p "$$site/vllm-0.32.0+cpu.dist-info" && \
	  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$$site/vllm-0.32.0+cpu.dist-info/METADATA"
	@touch $@

.venv-%/.complete: constraints/%-py311.txt | $(UV)
	@echo "making .venv-$*"
	@if [ -x $(UV) ]; then \
	  $(UV) venv -q --allow-existing --python $(PYTHON) .venv-$* && \
	  $(UV) pip install -q --python .venv-$*/bin/python --compile-bytecode --no-deps -r constraints/$*-py311.txt; \
	else \
	  $(PYTHON) -m venv .venv-$* && .venv-$*/bin/pip install -q --no-deps -r constraints/$*-py311.txt; \
	fi
	@touch $@
