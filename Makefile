# Every target that README and CI name. A fresh machine needs Python 3.11 or newer, and make.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# The generated code must load with protobuf 6 and 7 alike, so its protoc is older than both and lives apart.
PROTOC_TOOLS := grpcio-tools==1.74.0
PROTOS := $(sort $(wildcard proto/tuplewire/v1/*.proto))
WIRE   := clients/tuplewire/wire
PROTOC := .venv-proto/bin/python -m grpc_tools.protoc

# The tests start two thousand processes: each would compile the whole package where bytecode is not kept.
export PYTHONDONTWRITEBYTECODE :=

# pip makes a wheel of PySpark without compressing it.
export DIST_EXTRA_CONFIG := $(CURDIR)/tests/wheels.cfg

# On a terminal, pip shows what it downloads, and how much. Python compiles each module at its first import.
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --no-compile $$([ -t 2 ] || echo --quiet) --editable

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z][a-zA-Z_-]*:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

# --- environments -----------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tuplewire needs Python 3.11 or newer, this is %d.%d: make PYTHON=python3.11 ..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "Installing Tuplewire with PySpark into $(VENV) (a minute or two, once) ..."
	@$(INSTALL) '.[demo]'
	@touch $@

# With EXTRAS=dev,deploy, as in CI, one run of pip does the work of two.
EXTRAS ?= dev

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "Installing Tuplewire with its development tools into $(VENV) (a minute or two, once) ..."
	@$(INSTALL) '.[$(EXTRAS)]'
	@touch $@ $(VENV)/.demo $(if $(findstring deploy,$(EXTRAS)),$(VENV)/.deploy)

$(VENV)/.deploy: pyproject.toml | $(VENV)/.dev
	@$(INSTALL) '.[dev,deploy]'
	@touch $@

.venv-proto/.done: Makefile
	$(PYTHON) -m venv .venv-proto
	.venv-proto/bin/python -m pip install --quiet --disable-pip-version-check '$(PROTOC_TOOLS)'
	@touch $@

.PHONY: install
install: $(VENV)/.dev ## Set up .venv with everything that development needs

.PHONY: clean
clean: ## Remove everything that make has made
	rm -rf $(VENV) .venv-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find clients service topology tests -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the main job -----------------------------------------------------------------------------

.PHONY: run
run: $(VENV)/.demo ## Compare k-means on Spark with and without a Team (needs no Java)
	$(BIN)/tuplewire run kmeans

# --- checks -----------------------------------------------------------------------------------

# Many tests wait for much of their time: two files more than the two cores of CI.
TEST_PROCESSES ?= 4

# CI leaves out what `make test-long` runs as a part of a longer test.
MARKS ?= not long

.PHONY: test
test: $(VENV)/.dev ## Run every test, four files at a time; ARGS='-k name' for some of them
	$(BIN)/python -m pytest --numprocesses=$(TEST_PROCESSES) --dist=loadfile --no-loadscope-reorder --one-spark -m '$(MARKS)' --durations=10 $(ARGS)

.PHONY: test-topology
test-topology: $(VENV)/.dev ## Run the tests of topology/ alone
	$(BIN)/python -m pytest --numprocesses=$(TEST_PROCESSES) --dist=loadfile --one-spark -m 'not long' tests/*/topology $(ARGS)

.PHONY: test-long
test-long: $(VENV)/.dev ## Run the longest tests, which `make test` leaves out
	$(BIN)/python -m pytest --numprocesses=$(TEST_PROCESSES) --dist=loadfile -m long --durations=10 $(ARGS)

.PHONY: pythons pythons-install
pythons: $(VENV)/.dev ## Unit, conformance and contract tests on each other Python to 3.14 that is here or Maven has
	VENV=$(VENV) REQUIRED=$(or $(REQUIRED),1) tests/pythons.sh

pythons-install: $(VENV)/.dev
	VENV=$(VENV) tests/pythons.sh install

.PHONY: sparks sparks-install
sparks: $(VENV)/.dev ## Run one program on each Spark from 3.5 to 4.3; ONLY=4.1 for one of them
	VENV=$(VENV) ONLY="$(ONLY)" tests/sparks.sh

sparks-install: $(VENV)/.dev
	VENV=$(VENV) ONLY="$(ONLY)" tests/sparks.sh install

.PHONY: flicker
flicker: $(VENV)/.dev ## Run a test over and over beside a load on every core: TEST=tests/...::test_x RUNS=50
	PYTHONPATH=tests $(BIN)/python -m pytest -q -p helpers.flicker $(if $(RUNS),--runs=$(RUNS)) $(ARGS) $(TEST)

# Twenty examples of each property, and no test that takes more than a few seconds.
.PHONY: quick
quick: lint types ## Check what you write in under a minute: lint, types, unit and property tests
	$(BIN)/python -m pytest -q tests/unit tests/property --numprocesses=auto -m 'not slow and not long' --hypothesis-profile=quick $(ARGS)

.PHONY: hooks
hooks: $(VENV)/.dev ## Let git run lint, types and the checks of pages before each commit
	$(BIN)/pre-commit install --hook-type pre-commit --hook-type commit-msg

.PHONY: lint
lint: $(VENV)/.dev ## Check style and form of the Python code, that all of it is used, and plain English
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m vulture
	PYTHONPATH=tests/tools $(BIN)/python -m language

.PHONY: types
types: $(VENV)/.dev ## Check types with mypy --strict
	$(BIN)/mypy

# All but the tests use one core each: two at a time.
.PHONY: check
check: $(VENV)/.dev ## Run lint, types, proto-check, docs and test: what must hold before a change goes in
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types lint proto-check docs collect
	@$(MAKE) --no-print-directory test

# Compiles the tests and their imports once; otherwise, each process of `test` does so. `test` reports the errors.
.PHONY: collect
collect: $(VENV)/.dev
	@$(BIN)/python -m pytest --quiet --collect-only >/dev/null || true

.PHONY: deploy-tools
deploy-tools: ## Install what deploy-check needs beyond Python: Debian packages (as root), npm modules
	deploy/install-tools.sh

# Tests of `make test` that prove what production needs, too: who may talk, workers that find each other, metrics.
PRODUCTION := $(addprefix tests/integration/core/test_,tls.py permissions.py open_ports.py membership.py \
	worker_control.py worker_times.py restarting_server.py) tests/integration/spark/test_tokens.py \
	tests/integration/topology/test_program_rolls.py \
	$(addprefix tests/unit/,project/test_layers.py project/test_metrics_page.py project/test_docs.py core/test_series.py \
	core/test_worker_config.py spark/test_spark_kubernetes.py topology/test_storm_keys.py) \
	tests/contract/test_proto.py tests/spark/topology/test_own_workers.py

.PHONY: deploy-check
deploy-check: $(VENV)/.deploy ## Check image, manifests, rules, TLS, foreign clients and hosts apart with real tools
	$(BIN)/python -m pytest tests/deploy $(PRODUCTION) --numprocesses=2 --dist=loadfile --durations=10 $(ARGS)
	$(BIN)/python tests/tools/bench/run.py --only scrape

.PHONY: cluster-check
cluster-check: ## Check it in a real cluster, which it starts (or kind's, or yours): ARGS=--help, ARGS=--print
	deploy/cluster-check.sh $(ARGS)

.PHONY: property
property: $(VENV)/.dev ## Drive sessions, moves and drains through many random steps; SEED=n repeats a run
	TUPLEWIRE_LONG=1 TUPLEWIRE_SEED=$(SEED) $(BIN)/python -m pytest -s tests/property $(ARGS)

.PHONY: bench
bench: $(VENV)/.dev ## Measure speed against bare gRPC and pyzmq, as ratios of one run
	$(BIN)/python tests/tools/bench/run.py $(ARGS)

.PHONY: bench-idle
bench-idle: $(VENV)/.dev ## Measure workers that have nothing to do: start, memory, CPU, a new assignment
	$(BIN)/python tests/tools/bench/mesh.py idle $(ARGS)

.PHONY: bench-cores
bench-cores: $(VENV)/.dev ## Measure what a message costs with more workers: what more cores would bring
	$(BIN)/python tests/tools/bench/mesh.py cores $(ARGS)

.PHONY: bench-calls
bench-calls: $(VENV)/.dev ## Count the Python calls of a message that travels alone; ARGS=--cpu for CPU times
	$(BIN)/python tests/tools/bench/calls.py $(ARGS)

.PHONY: bench-compare
bench-compare: $(VENV)/.dev ## Run the bench of two commits by turns: BASE=commit, ARGS='--only hop --pairs 5'
	$(BIN)/python tests/tools/bench/compare.py $(BASE) $(ARGS)

.PHONY: bench-short
bench-short: $(VENV)/.dev ## Glance at three rows of the bench beside ten commits before, in a minute
	$(BIN)/python tests/tools/bench/compare.py --pairs=1 --seconds=4 --only=sends --only=hop/1000 --only=chain/1000 $(BASE) $(ARGS)

.PHONY: skew
skew: $(VENV)/.dev ## Run clients and workers of this commit together with those of BASE (default: the last release)
	$(BIN)/python tests/tools/bench/skew.py $(BASE)

.PHONY: bench-kafka
bench-kafka: $(VENV)/.dev ## Measure Spark with Tuplewire beside Spark with Kafka (needs Maven); ARGS=--quick
	$(BIN)/python tests/tools/bench/beside_kafka.py $(ARGS)

.PHONY: bench-storm
bench-storm: $(VENV)/.dev ## Measure one hop beside Storm's Netty transport (needs Maven and a JDK)
	$(BIN)/python tests/tools/bench/beside_storm.py $(ARGS)

CAMPAIGN := PYTHONPATH=tests:tests/tools:tests/tools/bench $(BIN)/python -m campaigns

.PHONY: chaos
chaos: $(VENV)/.dev ## Try random faults on real processes; SEED=7 MINUTES=2 TRANSPORT=zmq, ARGS=--help
	$(CAMPAIGN) chaos $(if $(TRANSPORT),--transport=$(TRANSPORT)) $(if $(SEED),--seed=$(SEED)) $(if $(MINUTES),--minutes=$(MINUTES)) $(ARGS)

.PHONY: chaos-transport
chaos-transport: $(VENV)/.dev ## Try the same on a transport alone; TRANSPORT=local, grpc or zmq, SEED=7 MINUTES=2
	$(CAMPAIGN) transport $(if $(TRANSPORT),--transport=$(TRANSPORT)) $(if $(SEED),--seed=$(SEED)) $(if $(MINUTES),--minutes=$(MINUTES)) $(ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.dev ## Attack a worker with hostile input; SEED=n MINUTES=m (default 3)
	$(CAMPAIGN) fuzz $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

.PHONY: soak
soak: $(VENV)/.dev ## Live a worker's month in half an hour; SEED=7 DAYS=30, PART=rolling RESTARTS=100
	$(CAMPAIGN) $(or $(PART),month) $(if $(SEED),--seed $(SEED)) $(if $(DAYS),--days $(DAYS)) $(if $(RESTARTS),--restarts $(RESTARTS)) $(ARGS)

# The lower bounds of pyproject.toml, and what the image has, read from there; the other checks use the newest versions.
OLDEST = $(shell sed -nE 's/^dependencies = \["(grpcio)>=([0-9.]+)[^"]*", "(protobuf)>=([0-9.]+),.*/\1==\2 \3==\4/p' pyproject.toml)
LOCKED = $(shell sed -nE 's/^((grpcio|protobuf)==[0-9.]+) .*/\1/p' deploy/requirements.lock)

# In a directory $(1), with the versions $(2).
define compat_environment
	@test $(words $(2)) = 2 || { echo "no versions of grpcio and protobuf found"; exit 1; }
	$(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile $(2) hypothesis numpy pandas pyarrow pytest pytest-timeout --editable '.[service]'
	@touch $(1)/.done
endef

.venv-oldest/.done: pyproject.toml
	$(call compat_environment,.venv-oldest,$(OLDEST))

.venv-locked/.done: pyproject.toml deploy/requirements.lock
	$(call compat_environment,.venv-locked,$(LOCKED))

# A server of gRPC lives on, or is followed, whatever is said to it.
SERVERS := tests/integration/core/test_restarting_server.py tests/integration/core/test_hostile_input.py::test_method_that_is_no_text

.PHONY: compat compat-install
compat: compat-install ## Test values, session and wire with the oldest protobuf and grpcio allowed, and the image's
	.venv-oldest/bin/python -m pip list --disable-pip-version-check | grep -E '^(grpcio|protobuf) '
	.venv-oldest/bin/python -m pytest tests/unit/core/test_message.py tests/property/core tests/contract/test_proto.py $(SERVERS)
	.venv-locked/bin/python -m pip list --disable-pip-version-check | grep -E '^(grpcio|protobuf) '
	.venv-locked/bin/python -m pytest tests/unit/core/test_message.py $(SERVERS)

compat-install: .venv-oldest/.done .venv-locked/.done

.PHONY: settings
settings: $(VENV)/.dev ## Write docs/reference/settings.md from the declarations in the code
	PYTHONPATH=tests $(BIN)/python -m helpers.settings_page > docs/reference/settings.md

.PHONY: monitoring
monitoring: $(VENV)/.deploy ## Write the chart's Grafana dashboard from deploy/prometheus/dashboard.yml
	$(BIN)/python deploy/prometheus/make_dashboard.py > deploy/helm/tuplewire/files/tuplewire.json

.PHONY: pictures
pictures: $(VENV)/.deploy build/pictures/panels.js ## Draw the pictures of live page and dashboard in docs/images anew, in a real browser
	$(BIN)/python tests/tools/pictures/live_pages.py
	$(BIN)/python tests/tools/pictures/dashboard.py

# Grafana's panels are npm packages; its server cannot be had from a registry.
GRAFANA := @grafana/ui@10.4.19 @grafana/data@10.4.19 react@18 react-dom@18 rxjs@7.8.1 esbuild@0
build/pictures/panels.js: tests/tools/pictures/panels.jsx
	npm install --silent --no-audit --no-fund --ignore-scripts --legacy-peer-deps --prefix build/pictures $(GRAFANA)
	NODE_PATH=build/pictures/node_modules build/pictures/node_modules/.bin/esbuild $< --bundle --minify --format=iife --outfile=$@ \
		--log-level=warning --define:global=window "--define:process.env.NODE_ENV='production'" --loader:.svg=dataurl

LOCK := $(BIN)/uv pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-header --no-annotate --upgrade

.PHONY: lock
lock: $(VENV)/.deploy ## Lock what the image is made of, in the newest versions that pyproject.toml allows
	$(LOCK) pyproject.toml --extra service --extra zmq --output-file deploy/requirements.lock
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
		| $(LOCK) - --output-file deploy/build-requirements.lock

HELM := $(or $(wildcard build/bin/helm),helm)

.PHONY: manifests
manifests: $(VENV)/.deploy ## Write the manifests for clusters without Helm, and the SparkApplication, from the chart
	$(HELM) template tuplewire deploy/helm/tuplewire > deploy/manifests.yaml
	$(BIN)/python deploy/make_spark_application.py < deploy/manifests.yaml > deploy/spark-application.yaml

# Draws the pictures of the site. Without npm they stay the text that they are made from.
MERMAID := mermaid@12.3.0

build/docs/mermaid.min.js: | $(VENV)/.dev
	@mkdir -p $(@D)
	@{ npm pack --silent --pack-destination $(@D) $(MERMAID) && tar xzf $(@D)/mermaid-*.tgz -C $(@D) --strip-components=2 package/dist/mermaid.min.js; } >/dev/null 2>&1 || echo "the pictures stay text: npm could not fetch $(MERMAID)"
	@rm -f $(@D)/mermaid-*.tgz

.PHONY: docs
docs: build/docs/mermaid.min.js | $(VENV)/.dev ## Build the site from the pages into build/site; a link that leads nowhere fails
	$(BIN)/python -m sphinx -c docs -W --keep-going --quiet -d build/docs/trees . build/site $(ARGS)
	@echo "The site: build/site/index.html"

.PHONY: wheel
wheel: $(VENV)/.dev ## Build the wheel into dist/
	$(BIN)/python -m build --wheel --outdir dist

.PHONY: release
release: $(VENV)/.dev ## Build what is published, check it, install it with each extra, and say how to upload it
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	VENV=$(VENV) tests/extras.sh dist/*.whl dist/*.tar.gz
	cd proto && ../$(BIN)/buf build --output baseline.binpb
	@echo "Ready: $(BIN)/python -m twine upload dist/*"

.PHONY: image
image: $(VENV)/.deploy ## Build the worker's image without a Docker engine, into build/image/oci; ARGS=--help
	PYTHON=$(BIN)/python deploy/build-image.sh $(ARGS)

.PHONY: spark-zip
spark-zip: $(VENV)/.dev ## Build the zip for Spark's --py-files into dist/
	$(BIN)/python -m tuplewire.spark.package dist/tuplewire-spark.zip

# --- generated code ---------------------------------------------------------------------------

# Imports are mapped from the wire's package (tuplewire.v1) to ours (tuplewire.wire). The health messages are kept
# out of the pool that all share: another copy of grpc.health.v1 in the same process meets no second one.
define generate
	rm -rf $(1).tmp && mkdir -p $(1).tmp $(1)
	$(PROTOC) -Iproto -Iclients --python_out=$(1).tmp --pyi_out=$(1).tmp --grpc_python_out=$(1).tmp $(PROTOS) $(WIRE)/health.proto
	rm -f $(1).tmp/tuplewire/v1/opaque_pb2_grpc.py
	sed -i -E 's/^from tuplewire\.v1 import/from tuplewire.wire import/' $(1).tmp/tuplewire/v1/*_pb2*.py*
	sed -i 's/_descriptor_pool\.Default()/_descriptor_pool.DescriptorPool()/' $(1).tmp/tuplewire/wire/health_pb2.py
	mv $(1).tmp/tuplewire/v1/*_pb2* $(1).tmp/tuplewire/wire/*_pb2* $(1)/
	rm -rf $(1).tmp
endef

.PHONY: proto
proto: .venv-proto/.done ## Generate the Python code of proto/
	$(call generate,$(WIRE))

.PHONY: proto-check
proto-check: .venv-proto/.done $(VENV)/.dev ## Lint proto/, and check that the generated code is current
	cd proto && ../$(BIN)/buf lint && ../$(BIN)/buf format --diff --exit-code
	cd proto && { [ ! -e baseline.binpb ] || ../$(BIN)/buf breaking --against baseline.binpb; }
	@rm -rf build/wire && $(MAKE) --no-print-directory build/wire
	@for f in build/wire/*; do cmp "$$f" "$(WIRE)/$$(basename $$f)" || { echo "generated code is not current: run 'make proto'"; exit 1; }; done

.PHONY: build/wire
build/wire: .venv-proto/.done
	@$(call generate,build/wire)
