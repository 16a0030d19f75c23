SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
PYTHON := $(VENV)/bin/python
EXPERIMENT ?= football
ARGS ?=
# The tests mostly wait: two to four processes take a file of them each.
PARALLEL := -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# Of the container images: see scripts/build-images.
export IMAGE_PREFIX TAG LEARNER_VARIANT BUILD_OPTIONS
PROTOS := $(shell find protos -name '*.proto')
STUBS := services/shared/generated/.stamp

.PHONY: help setup protos tools schema manifests lint type test test-images images train
.PHONY: chaos soak audit selftest bench-actor bench-atari bench-football bench-groups bench-impala
.PHONY: bench-inference bench-plan bench-replay bench-scale bench-system clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install everything: system packages, .venv, the football engine, stubs.
	@scripts/setup

protos: $(STUBS) ## Generate the gRPC stubs from protos/.

$(STUBS): $(PROTOS) scripts/generate-stubs
	@PYTHON=$(PYTHON) scripts/generate-stubs

tools: setup ## Fetch helm, kubectl, Prometheus into build/tools.
	@scripts/fetch-tools

schema: setup ## Generate what in helm/seedpod follows from the code: schema, experiments.
	@$(PYTHON) scripts/generate-chart

manifests: tools ## Render k8s/manifests, the chart without Helm.
	@scripts/render-manifests

lint: setup ## Check style, Dockerfiles, the contracts in protos/ and who imports whom.
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/buf lint protos
	$(VENV)/bin/hadolint services/*/Dockerfile
	@scripts/check-contract
	$(VENV)/bin/lint-imports

type: setup ## Check the types.
	$(VENV)/bin/mypy

test: tools ## Run the tests (ARGS: pytest's arguments).
	@scripts/install-browser
	@exec $(PYTHON) -m pytest $(PARALLEL) $(ARGS)

test-images: setup ## Build the container images and let them train together (needs Docker).
	@exec $(PYTHON) -m pytest tests/containers $(ARGS)

chaos: setup ## Do to real processes what happens to long runs (ARGS: see tests/chaos/__main__.py).
	@exec $(PYTHON) -m tests.chaos $(ARGS)

soak: setup ## Run for half an hour with changing actors; nothing may grow (ARGS: --seconds N).
	@exec $(PYTHON) -m tests.chaos.soak $(ARGS)

audit: setup ## Look up known vulnerabilities of the installed packages (ARGS: see scripts/audit).
	@scripts/audit $(ARGS)

images: ## Build the container images (IMAGE_PREFIX, TAG, LEARNER_VARIANT: see docs/images.md).
	@scripts/build-images

train: setup ## Train an agent (EXPERIMENT: a name or file; ARGS: see `seedpod train --help`).
	@exec $(VENV)/bin/seedpod train --experiment $(EXPERIMENT) $(ARGS)

selftest: ## Check that the football engine loads and steps.
	@exec $(PYTHON) -m services.actor.environments.football.selftest

bench-actor: setup ## Measure what the actor costs beside its environments.
	@OPENBLAS_NUM_THREADS=1 exec $(PYTHON) -m tests.benchmarks.bench_actor $(ARGS)

bench-atari: setup ## Measure Atari steps per CPU-second against the bare emulator.
	@OPENBLAS_NUM_THREADS=1 exec $(PYTHON) -m tests.benchmarks.bench_atari $(ARGS)

bench-football: setup ## Measure football steps per CPU-second against the stock wrapper.
	@exec $(PYTHON) -m tests.benchmarks.bench_football $(ARGS)

bench-groups: setup ## Measure when a worker's two groups are faster than one.
	@exec $(PYTHON) -m tests.benchmarks.bench_groups $(ARGS)

bench-inference: setup ## Measure what serving an action costs the learner.
	@OPENBLAS_NUM_THREADS=1 exec $(PYTHON) -m tests.benchmarks.bench_inference $(ARGS)

bench-replay: setup ## Measure what the replay service costs per item.
	@exec $(PYTHON) -m tests.benchmarks.bench_replay $(ARGS)

bench-impala: setup ## Train football with inference by the learner and by actors (IMPALA).
	@exec $(PYTHON) -m tests.benchmarks.bench_impala $(ARGS)

bench-plan: setup ## Hold `seedpod plan`'s simulation against real runs and SEED RL's table.
	@exec $(PYTHON) -m tests.benchmarks.bench_plan $(ARGS)

bench-scale: setup ## Measure what 100 to 4,000 environments cost one learner and two.
	@exec $(PYTHON) -m tests.benchmarks.bench_scale $(ARGS)

bench-system: setup ## Measure what a frame costs the whole system, and where.
	@exec $(PYTHON) -m tests.benchmarks.bench_system $(ARGS)

clean: ## Remove what the other targets made here (the engine's wheel cache stays).
	rm -rf $(VENV) build wheels services/shared/generated seedpod.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
