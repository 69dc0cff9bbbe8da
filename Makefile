# The commands a person needs; `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
CARGO := cargo
# Where cargo puts programs.
PROGRAMS := $(or $(CARGO_TARGET_DIR),target)/release
BENCH := $(PROGRAMS)/rowmill-bench
SEEDS ?= 1000
FUZZ_SECONDS ?= 60

.PHONY: help run test tests test-arm test-c archive install peers check test-full bench targets faults sim build setup setup-tests lab test-rxe bench-rxe test-python test-gpu gpu-kit docs

help: ## List these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

setup: # What building needs beside Rust; installs what is missing
	@deploy/setup.sh

build: setup # All programs, optimised, with assertions
	$(CARGO) build --release --bins

run: build ## Demo: a model, a service, queries, every answer checked (TRACE=file replays row ids; SECONDS_OF_LOAD=10, BYTES=64MiB)
	$(BENCH) demo $(if $(TRACE),--trace "$(TRACE)") $(if $(SECONDS_OF_LOAD),--seconds $(SECONDS_OF_LOAD)) $(if $(BYTES),--bytes "$(BYTES)")
	@deploy/huge-pages-hint.sh

# All packages but the workspace's rules, which `make check` runs: what these depend on gives serde_json a feature more, with which half
# of the programs would be built once more, and tested as they are not served.
TESTED := --workspace --exclude rowmill-workspace

test: tests ## All tests of the crates and of the programs (what is misused and what dies: make faults)
	$(CARGO) test --release $(TESTED)

setup-tests: # What tests and faults need beside that
	@deploy/setup-tests.sh

tests: setup setup-tests # What `make test` runs, built
	$(CARGO) build --release --bins
	$(CARGO) test --release $(TESTED) --no-run

test-python: build ## The Python package: installed by pip, tested against the programs, with PyTorch where it is in the cache
	@deploy/test-python.sh

check: setup ## Format, lints and documents with warnings denied, workspace rules
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --workspace --no-deps --quiet
	$(CARGO) test --release -p rowmill-workspace

archive: setup # The programs, and the archive that librowmill.so is linked from
	$(CARGO) build --release --lib --bins

test-c: archive ## The C interface: header, symbols, examples against a real service, plainly, under valgrind, with sanitizers
	@deploy/test-c.sh

PREFIX ?= /usr/local
install: archive ## librowmill.so, rowmill.h and rowmill.pc to PREFIX=/usr/local (DESTDIR= before it, for packages)
	@ffi/capi/install.sh "$(PREFIX)" "$(PROGRAMS)"

test-arm: setup ## The pure crates and shm, cross-built for arm64 and run on an emulated Cortex-A72
	@deploy/test-arm.sh

# run.py is the lab's driver; deploy/LAB.md tells of it.
LAB := deploy/lab/packages.sh python && deploy/lab/run.py
LAB_ARGUMENTS = $(if $(FILTER),--filter '$(FILTER)') $(if $(GROUND),--ground $(GROUND))

lab: ## Machines with soft-RoCE: kernel and initrd for QEMU, user-mode Linux (UML=no leaves it out, which takes minutes once)
	@$(LAB) build $(if $(filter no,$(UML)),--without-uml)

test-rxe: setup ## Tests on an RDMA device: the host's, real or soft, else in virtual machines (FILTER=regex, GROUND=nic|rxe|kvm|tcg)
	@$(LAB) test $(LAB_ARGUMENTS)

bench-rxe: setup ## Rates over RDMA: between two user-mode Linux, or on the host's device (FILTER=regex, GROUND=nic|uml)
	@$(LAB) bench $(LAB_ARGUMENTS)

test-gpu: setup ## Results in a GPU's memory: orders, releases, times; skipped without a GPU (RESULTS=file.json)
	@deploy/test-gpu.sh

gpu-kit: setup ## What test-gpu runs, in target/gpu-kit, for a machine with a GPU and nothing else
	@deploy/gpu-kit.sh

sim: build ## Simulations of the whole service and of the control plane over SEEDS=1000 seeds
	$(PROGRAMS)/sim --seeds $(SEEDS)
	$(PROGRAMS)/sim --control --seeds $(SEEDS)

test-full: setup ## Everything that CI has no time for: seeds, sanitizer, fuzzing, PyTorch, all of arm64; prints a table (STAGES=regex)
	@deploy/test-full.sh

bench: build ## All suites, readable
	$(BENCH) host
	$(BENCH) pooling
	$(BENCH) tables
	$(BENCH) null
	$(BENCH) serve

targets: build ## Every bound that has to be reached: PASS, SHORT or NOT MEASURED (those over RDMA in the lab)
	@deploy/lab/packages.sh python || true # without it those over RDMA are NOT MEASURED
	@deploy/lab/packages.sh bench || true # without them those beside fio and by valgrind
	deploy/stage-python.sh # for those beside TorchRec, which `make peers` installs
	$(BENCH) targets

docs: setup ## Reference of the crates and of the Python package, in target/doc
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --workspace --no-deps --quiet
	@deploy/docs-python.sh

peers: build ## PyTorch's embedding_bag and TorchRec's collection beside ours (installs both into the cache, about 6 GB)
	@deploy/setup-torch.sh
	deploy/stage-python.sh
	$(BENCH) peers

faults: archive setup-tests ## Every fault that has to be survived, as a named test (FILTER=regex picks some, WITHOUT=regex leaves some out)
	@deploy/stage-python.sh
	$(PROGRAMS)/faults $(if $(FILTER),--filter '$(FILTER)') $(if $(WITHOUT),--without '$(WITHOUT)')
