# The two commands a newcomer needs: `make demo` and `make test`. Each does its own set-up.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# A service of systemd has none, and Go wants one.
HOME ?= $(shell echo ~)
export HOME
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ppo
PYTHON ?= python3
# Where cargo builds: a shared folder on machines that set one. It is told, because a configuration of the user's may name another.
# No `abspath`, which takes a path with a space for two.
export CARGO_TARGET_DIR := $(if $(filter /%,$(CARGO_TARGET_DIR)),$(CARGO_TARGET_DIR),$(CURDIR)/$(or $(CARGO_TARGET_DIR),target))
RELEASE := $(CARGO_TARGET_DIR)/release
WORKER := $(RELEASE)/ppo-worker

.PHONY: help demo demo-cluster test test-gpu sweep lint deny bench bench-distributed bench-http bench-operator parity crds cluster images tools go libtorch cuda-shim release clean bench-gpu for-cluster

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

tools: # says clearly what is missing
	@missing=0; need() { command -v "$$1" >/dev/null || { echo "make: $$1 is needed: $$2" >&2; missing=1; }; }; \
	need cargo "install Rust from https://rustup.rs"; \
	need $(PYTHON) "install Python 3 with pip (Debian: apt install python3 python3-pip)"; \
	need c++ "install a C++ compiler (Debian: apt install g++, Fedora: dnf install gcc-c++)"; \
	if command -v c++ >/dev/null && [ "$$(uname -m)" = x86_64 ]; then echo 'void tiles() { asm("tdpbf16ps %tmm2, %tmm1, %tmm0"); }' | c++ -std=c++17 -mavx512bf16 -c -o /dev/null -x c++ - 2>/dev/null || { echo "make: the C++ compiler or its assembler is too old ($$(c++ --version | head -1)): GCC 10 with binutils 2.35, or clang 11, is needed, as c++ in PATH" >&2; missing=1; }; fi; \
	if command -v $(PYTHON) >/dev/null; then $(PYTHON) -m pip --version >/dev/null 2>&1 || { echo "make: $$(command -v $(PYTHON)) has no pip: install it (Debian: apt install python3-pip; in a virtual environment: $(PYTHON) -m ensurepip), or name another Python: make PYTHON=/usr/bin/python3" >&2; missing=1; }; fi; \
	exit $$missing

# As tests/cluster/build finds it, and asked for before anything large is fetched.
go: tools
	@command -v go >/dev/null || test -x /usr/local/go/bin/go || { echo "make: go is needed to build the Kubernetes that the tests run against: install Go 1.26 from https://go.dev/dl (any Go since 1.21 fetches 1.26 by itself)" >&2; exit 1; }

libtorch: tools # libtorch 2.11.0 without CUDA, once per machine
	@$(PYTHON) worker/native/fetch-libtorch.py

cluster: go ## the Kubernetes that the tests run against, built once per machine (twenty to forty minutes on two cores)
	@tests/cluster/build

cuda-shim: libtorch ## what the worker loads where there is a GPU: CUDA graphs, streams and our kernels; half a minute, nvcc comes from PyPI
	@$(PYTHON) worker/native/cuda/build.py "$(RELEASE)/libppo_cuda.so"

release: libtorch ## the worker as it is shipped
	cargo build --release --locked -p ppo-worker --bin ppo-worker

demo: release ## make a small model, train it with PPO, show what it learnt
	configs/quickstart/demo.sh "$(WORKER)"

# A Kubernetes of its own needs root, and Go to build it; KUBECONFIG names another, which pulls images from IMAGES (`make images REGISTRY=...`).
demo-cluster: for-cluster $(if $(KUBECONFIG),,go) release ## real pods train, two are killed, no bit differs: a Kubernetes of its own, or that of KUBECONFIG
	cargo build --release --locked -p ppo-operator --bins
ifdef KUBECONFIG
	PATH="$(RELEASE):$$PATH" configs/quickstart-cluster/demo.sh "$(WORKER)"
else
	cargo run --release --locked -p ppo-tests --example real_cluster -- configs/quickstart-cluster/demo.sh "$(WORKER)"
endif

for-cluster: # says what is missing before anything is built
ifdef KUBECONFIG
	@for tool in kubectl helm; do command -v $$tool >/dev/null || { echo "make demo-cluster: $$tool is needed and not in PATH: install it" >&2; exit 1; }; done
else
	@[ "$$(id -u)" = 0 ] || { echo "make demo-cluster: a Kubernetes of its own needs root; KUBECONFIG=FILE names a cluster of yours" >&2; exit 1; }
endif

test: go libtorch cluster lint deny cuda-shim ## everything that must hold; with PPO_TEST_SKIP=never what cannot run here fails
	cargo test --workspace --lib --tests --locked # makes the binaries that the tests run, too; examples are compiled by clippy

# The CUDA part of libtorch is that of PYTHON's torch; libppo_cuda.so lies in RELEASE.
test-gpu: cuda-shim ## the worker's tests for GPUs on this machine's GPU; PYTHON has torch 2.11.0+cu130
	torch=$$($(PYTHON) -c 'import os, torch; print(os.path.dirname(torch.__file__))'); \
	export LD_LIBRARY_PATH="$$torch/lib:$${LD_LIBRARY_PATH:-}"; \
	LD_LIBRARY_PATH="$$LD_LIBRARY_PATH:$(RELEASE)" cargo test -p ppo-worker --lib --locked -- --ignored; \
	cargo build -p ppo-worker --bin ppo-worker --locked; \
	PPO_TEST_GPU="$(RELEASE)" cargo test -p ppo-tests --test gpu --locked

sweep: cluster ## the operator killed around every write of a job's life, and under random faults; part of `make test`
	cargo test -p ppo-tests --locked --test sweep

lint: libtorch ## format and clippy, warnings denied
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

# cargo-deny is built once into the cache: its own dependencies are not ours. Its own profile is for who downloads it, fat LTO in one unit.
CARGO_DENY := $(CACHE)/cargo-deny-0.20.2/bin/cargo-deny
$(CARGO_DENY): | tools
	CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
	cargo install --locked --quiet --root $(CACHE)/cargo-deny-0.20.2 --target-dir "$(CARGO_TARGET_DIR)/cargo-deny" cargo-deny@0.20.2
	rm -rf "$(CARGO_TARGET_DIR)/cargo-deny"

deny: $(CARGO_DENY) ## dependency bans, licences and sources
	$(CARGO_DENY) --locked check bans licenses sources

crds: libtorch ## write the generated files anew
	UPDATE_EXPECT=1 cargo test --locked -p ppo-crds
	UPDATE_EXPECT=1 cargo test --locked -p ppo-worker --test metrics
	UPDATE_EXPECT=1 cargo test --locked -p ppo-tests --test chart -- copies the_list_of_the_operators_metrics

# For x86-64 on every machine: a laptop with another processor would make an operator that no node of the cluster starts.
images: ## container images of operator and worker; REGISTRY=host/path in front of their names
	@for engine in docker podman buildah none; do command -v $$engine >/dev/null && break; done; \
	if [ $$engine = none ]; then echo "make images: docker, podman or buildah is needed and none is in PATH: install one of them" >&2; exit 1; fi; \
	version=$$(sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -1); prefix=$(if $(REGISTRY),$(REGISTRY:/=)/); \
	export DOCKER_BUILDKIT=1; \
	build() { echo "== $$prefix$$2"; $$engine build --platform linux/amd64 --file $$1 --tag $$prefix$$2 .; }; \
	build operator/Dockerfile ppo-operator:$$version; \
	build worker/Dockerfile ppo-worker:$$version; \
	build worker/Dockerfile.cuda ppo-worker:$$version-cuda; \
	echo "push them with: for i in ppo-operator:$$version ppo-worker:$$version ppo-worker:$$version-cuda; do $$engine push $$prefix\$$i; done"

bench: go release ## all measurements: sampling and PPO steps beside their peers, the three below, the times of demo-cluster (two hours)
	cargo build --release --locked -p ppo-worker --bin ppo-bench
	$(PYTHON) worker/bench/run.py --binaries "$(RELEASE)"
	$(PYTHON) worker/bench/http_cost.py --binaries "$(RELEASE)"
	$(PYTHON) worker/bench/distributed.py --binaries "$(RELEASE)"
	@$(MAKE) --no-print-directory bench-operator
	@if [ -n "$${KUBECONFIG:-}" ] || [ "$$(id -u)" = 0 ]; then $(MAKE) --no-print-directory demo-cluster; \
	else echo "make bench: a job of pods, of which two are killed, needs root or KUBECONFIG: skipped" >&2; fi

bench-http: libtorch ## the engine through HTTP beside the engine alone
	cargo build --release --locked -p ppo-worker --bin ppo-bench
	$(PYTHON) worker/bench/http_cost.py --binaries "$(RELEASE)"

bench-distributed: release ## a PPO step over processes beside one process, two actor ranks beside one
	$(PYTHON) worker/bench/distributed.py --binaries "$(RELEASE)"

# SCALE: such as "--settings 300x8 --systems ours,job", or "--add" to go on after a failure.
bench-operator: go ## many jobs beside the Job controller, JobSet, KubeRay and training-operator (half an hour on two cores)
	cargo build --release --locked -p ppo-operator --bin ppo-operator
	cargo run --release --locked -p ppo-tests --example operator_scale -- $(SCALE)

bench-gpu: cuda-shim ## decoding and PPO steps on a GPU beside transformers and TRL; PYTHON has torch 2.11.0+cu130, transformers 4.57 and trl 0.24
	cargo build --release --locked -p ppo-worker --bins
	$(PYTHON) worker/bench/gpu.py --binaries "$(RELEASE)"

parity: libtorch ## models and adapters we save, loaded by transformers and PEFT (fetches them and torch: 5 GB)
	$(PYTHON) worker/bench/parity.py

clean: ## build outputs and runs; the cache stays
	cargo clean
	rm -rf runs
