# The verbs of the project. Each sets up what it needs (tools/setup) and builds with CMake presets.
PRESET ?= cpu
BUILD = build/$(PRESET)
JOBS ?= $(shell nproc)
SECONDS_EACH = $(or $(SECONDS),600)
FUZZ_SECONDS ?= 20
SANITIZER ?= sanitize
SOURCES = git ls-files --cached --others --exclude-standard -- '*.cc' '*.h'

.PHONY: all configure demo test test-ops cuda-kernels e2e constrained bench fuzz fuzzers sanitize format lint clean help
.NOTPARALLEL:

all: configure ## build build/cpu/deepinfer (PRESET=cpu|cuda|debug|sanitize)
	cmake --build $(BUILD) -j $(JOBS) --target deepinfer

configure:
	@tools/setup build
	@cmake --preset $(PRESET) >/dev/null

demo: all ## let the bundled model tell a story, then fetch the demo model and ask it something
	$(BUILD)/deepinfer generate --model checkpoints/tiny-v41 --prompt "Once upon a time" --seed 1 \
		--max-tokens 100
	@tools/setup demo
	$(BUILD)/deepinfer model pull
	$(BUILD)/deepinfer generate --prompt "What is the capital of France?" --temperature 0

test: configure fuzzers ## build everything and run the whole suite; FUZZ_SECONDS=20 a fuzzer
	cmake --build $(BUILD) -j $(JOBS)
	FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_SEED=1 ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure

test-ops: configure ## hold every ISA of this machine to the plain-loop reference; PRESET=cuda BACKEND=cuda: a card
	cmake --build $(BUILD) -j $(JOBS) --target ops_test attention_ops_test
	BACKEND=$(BACKEND) $(BUILD)/tests/ops/ops_test
	BACKEND=$(BACKEND) $(BUILD)/tests/ops/attention_ops_test

cuda-kernels: ## compile the CUDA device for every card it knows, where nvcc 13 or newer is installed
	@nvcc=$$(PATH="$$CUDA_PATH/bin:$$PATH:/usr/local/cuda/bin:/opt/cuda/bin" command -v nvcc); \
	release=$$("$${nvcc:-false}" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\).*/\1/p'); \
	if [ "$${release:-0}" -lt 13 ]; then \
		echo "cuda-kernels: skipped, nvcc 13 or newer is not installed"; \
	else \
		tools/setup build && cmake --preset cuda >/dev/null && \
		cmake --build build/cuda -j $(JOBS) --target di_backend; \
	fi

e2e: configure ## drive the real binary with real clients
	cmake --build $(BUILD) -j $(JOBS)
	ctest --test-dir $(BUILD) -R '^e2e_' --output-on-failure

constrained: configure ## COUNT=2000 answers under grammars: each valid, with speculation and without
	cmake --build $(BUILD) -j $(JOBS) --target constrained
	$(BUILD)/tests/stress/constrained $(or $(COUNT),2000) $(BUILD)/constrained.jsonl
	python3 tests/stress/validate_constrained.py $(BUILD)/constrained.jsonl

fuzzers:
	@tools/setup build fuzz
	@cmake --preset fuzz >/dev/null
	cmake --build build/fuzz -j $(JOBS) --target fuzzers

fuzz: fuzzers ## run every fuzzer, SECONDS=600 each
	tools/fuzz --seconds $(SECONDS_EACH) --jobs $(JOBS) $(NAMES)

sanitize: ## the suite under sanitizers: address and undefined behaviour, or SANITIZER=thread
	@tools/setup build
	@cmake --preset $(SANITIZER) >/dev/null
	cmake --build build/$(SANITIZER) -j $(JOBS)
	ctest --test-dir build/$(SANITIZER) -j $(JOBS) --output-on-failure

bench: configure ## the operator benchmarks
	cmake --build $(BUILD) -j $(JOBS) --target benches
	@for program in $(BUILD)/src/*/*_bench; do echo "== $$program"; $$program || exit 1; done

format: ## rewrite the sources in the project's format
	@tools/setup lint
	$(SOURCES) | xargs clang-format -i

lint: configure ## format, tidy and clang-tidy, without changing anything
	@tools/setup lint
	$(SOURCES) | xargs clang-format --dry-run -Werror
	tools/tidy
	$(SOURCES) | grep '\.cc$$' | xargs -P $(JOBS) -n 4 clang-tidy -p $(BUILD) --quiet

clean: ## remove the build directories of the presets
	rm -rf build/cpu build/cuda build/debug build/sanitize build/thread build/fuzz

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12
