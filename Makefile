# The front door. Needs make and Python 3.11 to 3.14; Python packages and, where it is
# needed, Java land in .venv.
#
#   make demo                    rebuild the indexes of a real broker's dump, compare, print a table
#   make check                   everything that has to hold before a change goes in
#   make install PYTHON=python3.12   choose the interpreter

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The first interpreter that fits; asked only when the environment has to be made.
CANDIDATES := $(PYTHON) python3 python3.11 python3.12 python3.13 python3.14 python
ACCEPTED := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))

# Spark finds itself through the interpreter, and Java through JAVA_HOME.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
WITH_JAVA = JAVA_HOME="$$(sh tools/java/java-home.sh $(VENV))" PATH="$(CURDIR)/$(BIN):$$PATH"

# The bytecode of this package is kept, as pip keeps that of others: the tests start many processes.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := $(BIN)/python -m pytest
# Processes that share the tests; the files that use one session of Spark, or one server, stay
# together. Those that take longest come first.
WORKERS := 2
TOGETHER = -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
SOURCES := kafka_index jobs examples benchmarks tests

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

.PHONY: install
install: $(STAMP) ## make .venv with everything the other targets need

$(STAMP): pyproject.toml tools/java/install.sh tools/java/java-home.sh tools/java/java-wrapper.sh
	@set -e; if [ ! -x $(BIN)/python ]; then \
		for candidate in $(CANDIDATES); do \
			if "$$candidate" -c '$(ACCEPTED)' >/dev/null 2>&1; then found=$$candidate; break; fi; \
		done; \
		if [ -z "$${found:-}" ]; then \
			echo "make install needs Python 3.11 to 3.14 with venv (Debian: apt-get install python3-venv)" >&2; \
			exit 1; \
		fi; \
		echo "making $(VENV) with $$("$$found" --version)"; \
		"$$found" -m venv $(VENV); \
	fi
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	sh tools/java/install.sh $(VENV)
	-$(BIN)/kafka-index warm-up # where nothing can be kept, each run compiles what it needs
	@touch $@

.PHONY: demo
demo: $(STAMP) ## rebuild the indexes of a real broker's dump and compare them with its own
	@$(WITH_JAVA) $(BIN)/python examples/demo.py

# What Spark's JVMs load, for the many that the tests start.
SPARK_CLASSES := $(VENV)/var/cache/spark-classes.stamp
$(SPARK_CLASSES): $(STAMP)
	$(WITH_JAVA) $(BIN)/python -m tests.support.spark_classes
	@touch $@

# Many of these tests wait, for a process to start or to be killed, while others compute.
test cluster: WORKERS := 3
# Thousands of files that are synced, renamed and removed take a disk longer than the tests compute.
# Only what failed is kept.
test: PYTEST = TMPDIR="$$(sh tools/memory-folder.sh)" $(BIN)/python -m pytest \
	--override-ini tmp_path_retention_policy=failed
.PHONY: test
test: $(SPARK_CLASSES) ## run every test that does not need Kafka's own jars; WORKERS=0 uses one process
	$(WITH_JAVA) $(PYTEST) $(TOGETHER) tests --ignore=tests/conformance --ignore=tests/cluster

.PHONY: smoke
smoke: $(STAMP) ## run every command once, and one task on Spark: in less than a minute
	$(WITH_JAVA) $(PYTEST) tests/test_smoke.py

.PHONY: cluster
cluster: $(SPARK_CLASSES) ## run the tests on a standalone Spark cluster and on a Spark Connect server
	$(WITH_JAVA) $(PYTEST) -n $(WORKERS) --dist worksteal tests/cluster

# CASES is how many random segments are generated, SEED draws what another run drew.
.PHONY: conformance
conformance: $(STAMP) ## compare with Kafka's own code; CASES=100000 draws more, SEED=n the same again
	$(WITH_JAVA) KAFKA_INDEX_CASES="$(CASES)" KAFKA_INDEX_SEED="$(SEED)" \
		$(PYTEST) $(TOGETHER) -p tests.conformance.campaign tests/conformance

# What draws a tenth or less elsewhere draws all here (tests/support/campaign.py).
CAMPAIGN := tests/outputs tests/commands/verify/test_interrupted.py \
	tests/endtoend/test_remote_faults.py tests/conformance/broker/test_predicted_start.py \
	tests/conformance/broker/test_random_directories.py tests/conformance/broker/test_metadata_damage.py \
	tests/conformance/broker/test_killed_restores.py tests/conformance/broker/test_three_brokers.py \
	tests/conformance/broker/test_three_backups.py \
	tests/commands/restore/test_full_disk.py tests/commands/export/test_table_commits.py \
	tests/commands/export/test_latest_tables.py tests/conformance/test_lake_readers.py \
	tests/endtoend/test_failing_calls.py tests/endtoend/test_secrets.py \
	tests/core/schema/test_avro.py tests/core/schema/test_protobuf.py \
	tests/core/query/test_log_ends.py tests/commands/rewrite/test_condition.py tests/commands/rewrite/test_revival.py \
	tests/commands/build/test_partition_retries.py tests/cli/test_linked_content.py \
	tests/cli/test_links_out.py \
	tests/endtoend/test_missing_offsets.py \
	tests/endtoend/test_unsorted_listings.py tests/spark/test_startup.py \
	tests/core/cluster/remote/test_damaged_indexes.py tests/cluster/test_backups.py \
	tests/cluster/test_kills.py tests/commands/backup/test_clamp.py tests/commands/backup/test_races.py \
	tests/commands/backup/test_failing_calls.py tests/commands/backup/test_faulty_store.py
# What draws a quarter elsewhere.
RANDOM_TESTS := tests/core/kernels tests/core/log/scan tests/core/log/state tests/core/index tests/core/log/read

.PHONY: campaign
campaign: $(STAMP) ## run the long random tests in full; make test runs a tenth of them or less
	$(WITH_JAVA) KAFKA_INDEX_CAMPAIGN=1 $(PYTEST) $(CAMPAIGN)
	$(WITH_JAVA) KAFKA_INDEX_CAMPAIGN=1 $(PYTEST) -n $(WORKERS) --dist loadfile $(RANDOM_TESTS)
	$(WITH_JAVA) KAFKA_INDEX_CASES=2000 $(PYTEST) $(TOGETHER) -p tests.conformance.campaign \
		tests/conformance --ignore=tests/conformance/broker
	$(WITH_JAVA) KAFKA_INDEX_CASES=40000 $(PYTEST) -p tests.conformance.campaign \
		tests/conformance/test_predicted_partitions.py tests/conformance/test_verified_mutations.py \
		tests/conformance/test_restored_partitions.py
	$(WITH_JAVA) $(BIN)/python -m tests.conformance.decoding_campaign --count 20000

# Apart from make check: Airflow and the image's environment take a minute to install.
.PHONY: pipeline
pipeline: $(STAMP) ## run the DAG of examples/pipeline by Airflow, and the steps of the Dockerfile
	$(WITH_JAVA) KAFKA_INDEX_PIPELINE=1 $(PYTEST) tests/pipeline

# Both ends of the ranges in pyproject.toml, each in an environment of its own: the lowest Python
# with the lowest versions of the libraries, the newest Python with the newest.
ENDS := build/lowest build/newest
.PHONY: $(ENDS)
$(ENDS): $(STAMP)
	$(BIN)/python -m tools.versions.environment $(@F) $@

# Spark 4.1 leaves sockets for the collector of garbage to close.
ON_END = $(WITH_JAVA) PYTHONPATH="$(CURDIR)" PYSPARK_PYTHON="$(CURDIR)/build/$*/bin/python" \
	PYSPARK_DRIVER_PYTHON="$(CURDIR)/build/$*/bin/python" build/$*/bin/python -m pytest \
	-W ignore::pytest.PytestUnraisableExceptionWarning

SLICE := tests/test_smoke.py \
	tests/spark/test_data_source.py::test_data_source_rows_equal_read_records \
	tests/spark/test_lookup_frames.py::test_lookup_frame_keeps_all_rows_and_columns
.PHONY: ends
ends: $(ENDS) ## run every command, and Spark, on the lowest and on the newest Python and libraries
	$(MAKE) --no-print-directory -j 2 -O slice-lowest slice-newest

slice-%:
	$(ON_END) $(SLICE)

# What depends most on the versions of libraries.
DEPENDENT := tests/test_smoke.py tests/spark tests/core/kernels tests/cli tests/core/query tests/commands/import_
.PHONY: versions
versions: $(ENDS) ## run far more tests on both ends, and those of Kafka's two versions
	$(MAKE) --no-print-directory versions-lowest versions-newest
	$(WITH_JAVA) $(PYTEST) tests/conformance/test_versions.py

versions-%:
	$(ON_END) $(TOGETHER) $(DEPENDENT)

.PHONY: golden
golden: $(STAMP) ## let Kafka write anew every golden file that make test uses
	$(WITH_JAVA) $(BIN)/python -m tests.conformance.make_golden

.PHONY: compare
compare: $(STAMP) ## compare what two checkouts write, byte for byte: make compare BEFORE=../other
	$(WITH_JAVA) $(BIN)/python tools/compare_checkouts.py $(BEFORE)

.PHONY: lint
lint: $(STAMP) ## check style, formatting and the rooms' import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

.PHONY: types
types: $(STAMP) ## check types
	$(BIN)/mypy $(SOURCES)

.PHONY: check
check: lint types docs ## everything that has to hold: style, contracts, types, docs, tests, versions, conformance
	$(MAKE) test
	$(MAKE) ends
	@# Clusters wait for processes to start, half of the time, while the comparisons compute.
	$(MAKE) -j 2 cluster conformance

.PHONY: benchmark
benchmark: $(STAMP) ## measure against Kafka's own code on this machine
	$(WITH_JAVA) $(BIN)/python -m benchmarks

.PHONY: docs
docs: $(STAMP) ## build the site of the documentation into build/site, and check its links
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

.PHONY: package
package: $(STAMP) ## build wheels (any system; with machine code), sources and the zip for --py-files into dist/
	rm -rf build dist
	$(BIN)/python -m pip install --quiet build
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m tools.wheels.compiled dist/kafka_index-*-none-any.whl

.PHONY: clean
clean: ## remove what the targets made, .venv and Kafka's jars too
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache \
		.hypothesis artifacts metastore_db spark-warehouse derby.log tests/conformance/reference/target
	find kafka_index jobs tests examples benchmarks tools -name __pycache__ -type d \
		-exec rm -rf {} + 2>/dev/null || true
