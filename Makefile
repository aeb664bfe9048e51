# One word a task; `make help` lists them. tools/install makes .venv with uv, or with pip where uv is missing.
#   make demo PYTHON=python3.12     another interpreter
#   make demo UV=                   pip, although uv is there
#   make test-all ARGS="-k naming"  further arguments for pytest

BIN := .venv/bin
# Five files at a time, also on two cores: much of the suite waits. `make test SPREAD=` runs one after the other.
SPREAD := -n 5 --dist loadfile --no-loadscope-reorder
# What `make newest-kubernetes` runs.
CLUSTER_TESTS := tests/kubernetes tests/training_operator tests/runai
# Tests start thousands of processes. Each would compile the packages again: a sixth of the processor time.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help demo airflow-up airflow-e2e airflow-hosts install install-mlflow test test-ci test-all attack mutants test-airflow31 test-libraries install-trl test-trl newest newest-kubernetes lint format lock compile bench features pictures docs extras clean

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: .venv/.done/demo ## train a real model through Airflow on this machine
	@$(BIN)/python tools/demo.py

airflow-up: .venv/.done/demo ## run a whole Airflow with the example DAGs on this machine, until Ctrl-C
	@$(BIN)/python tools/airflow_up.py

airflow-e2e: .venv/.done/demo ## retrain through a whole Airflow, with a triggerer restart and a worker killed
	@$(BIN)/python tools/airflow_e2e.py

airflow-hosts: .venv-celery/.done/celery ## kill workers and hosts of an Airflow on several hosts (root, PostgreSQL, Redis)
	@.venv-celery/bin/python tools/airflow_hosts.py

install: .venv/.done/dev ## install everything a developer needs into .venv

install-mlflow: .venv-mlflow/.done/mlflow ## install the MLflow server that the tests of tracking run against into .venv-mlflow

test: .venv/.done/dev ## run the tests that are not marked slow
	$(BIN)/python -m pytest $(SPREAD) -m "not slow" $(ARGS)

test-ci: .venv/.done/dev ## run the tests that CI runs: all but those marked deep
	$(BIN)/python -m pytest $(SPREAD) -m "not deep" $(ARGS)

test-all: .venv/.done/dev ## run every test
	$(BIN)/python -m pytest $(SPREAD) $(ARGS)

attack: .venv/.done/dev ## attack the promises with kills, races, faults and hostile input, and write docs/tried.md (20 minutes at most)
	PIP_RETRIES=0 UV_HTTP_RETRIES=0 PYTHONPATH=tests/fakes:tests/local:tests/containers:tests/kubernetes \
		$(BIN)/python -W ignore tests/attack/attack.py $(ARGS)

mutants: .venv/.done/dev ## play 400 one-line mistakes on the modules that decide, and print what no test notices (20 minutes at most)
	$(BIN)/python tools/mutants.py $(ARGS)

test-airflow31: .venv-airflow31/.done/airflow31 ## run the tests of the Airflow provider on Airflow 3.1
	.venv-airflow31/bin/python -m pytest tests/airflow $(ARGS)

test-libraries: .venv/.done/dev .venv-libraries/.done/libraries ## run the tests of checkpoints with transformers and Lightning
	$(BIN)/python -m pytest tests/libraries $(ARGS)

install-trl: .venv-trl/.done/trl ## install TRL into .venv-trl

test-trl: .venv/.done/dev .venv-trl/.done/trl ## train language models with TRL
	$(BIN)/python -m pytest tests/language_models $(ARGS)

newest: .venv-newest/.done/newest newest-kubernetes ## run the tests with the newest versions of all dependencies, and list them
	@tools/newer-than-constraints .venv-newest
	.venv-newest/bin/python -m pytest $(SPREAD) $(ARGS)

newest-kubernetes: .venv-newest-kubernetes/.done/newest-kubernetes ## run the tests of clusters with the newest Kubernetes client, which kfp does not admit
	@tools/newer-than-constraints .venv-newest-kubernetes
	.venv-newest-kubernetes/bin/python -m pytest -n 2 --dist loadfile $(CLUSTER_TESTS) $(ARGS)

lint: .venv/.done/dev ## check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.done/dev ## format the code and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## resolve both constraints files anew (needs uv)
	tools/lock-constraints $(ARGS)

compile: .venv/.done/dev ## compile the example pipelines and components to YAML, and write the components' pages
	$(BIN)/python pipelines/compile.py
	$(BIN)/python tools/kfp_reference.py

bench: .venv/.done/dev .venv-mlflow/.done/mlflow ## measure, each against its yardstick
	@failed=; for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file" || failed="$$failed $$file"; done; \
		[ -z "$$failed" ] || { echo "failed, or missed a target:$$failed"; exit 1; }

features: .venv/.done/dev ## run the contract on each backend (ARGS="local debug": on these) and write docs/features.md
	$(BIN)/python tools/features.py $(ARGS)

pictures: .venv/.done/dev ## make the pictures of README and documentation from a running Airflow (needs Chromium)
	@$(BIN)/python -W ignore tools/pictures.py

docs: .venv/.done/docs ## build the documentation into site/
	$(BIN)/mkdocs build --strict

extras: .venv/.done/dev ## build the wheel, and check each extra alone in an environment of its own (fetches uv where it is missing)
	@$(BIN)/python tools/check_extras.py

clean: ## remove what builds, checks and tests leave (not .venv*)
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

# Each file says that this part of the installation stands; it is written last.
.venv/.done/%: tools/install pyproject.toml constraints.txt
	@sh tools/install $*

.venv-celery/.done/celery: tools/install pyproject.toml constraints.txt
	@sh tools/install celery

.venv-libraries/.done/libraries: tools/install pyproject.toml constraints.txt
	@sh tools/install libraries

.venv-trl/.done/trl: tools/install pyproject.toml constraints.txt
	@sh tools/install trl

.venv-newest/.done/newest: tools/install pyproject.toml
	@sh tools/install newest

.venv-newest-kubernetes/.done/newest-kubernetes: tools/install pyproject.toml
	@sh tools/install newest-kubernetes

.venv-mlflow/.done/mlflow: tools/install-mlflow
	@sh tools/install-mlflow

.venv-airflow31/.done/airflow31: tools/install pyproject.toml constraints-airflow31.txt
	@sh tools/install airflow31
