#!/usr/bin/env python3
"""Shows that the golden tests of DeepSeek-V4.1 notice every term of the model.

Each mutation drops or alters one term of the NumPy reference. It must move at least one number that
tests/golden/deepseek_v41_test.cc compares by more than the tolerance it compares with: the
log-probabilities of a prompt, its greedy tokens, the first drafts or their confidences. Exits with
the names of the terms that nothing notices: python3 tools/mutation_reference.py [name ...]
"""

import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import deepseek_v41_reference as reference

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "data" / "deepseek_v41"
MUTATIONS = """sink inverse_rope qat_window qat_entry qat_index yarn compress_theta one_rope entry_pos
pool_gate key_from_rotated compressed_branch candidate_mask candidate_pin index_weights index_relu
comb_transpose post_x2 sinkhorn hc_eps pre_next_site pre_uniform rms_eps_1e-6 gate_bias
bias_in_weights norm_topk route_scale swiglu_clamp weight_after_w2 shared_expert engram engram_gate
engram_sqrt draft_block_qat draft_ctx draft_bidirectional ctx_stream0 markov conf_prenorm
draft_position fp4_nibble""".split()
# The same function in exact arithmetic: W2 is linear, and equal streams collapse alike.
INVISIBLE = {"weight_after_w2", "pre_uniform"}


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def noticed(model, case):
    """What the C++ test would report for this case; None when it would pass."""
    ids = case["prompt"]
    logprobs = log_softmax(model.run(reference.Whole(model), ids)["logits"])
    got = [logprobs[i, ids[i + 1]] - case["prompt_logprobs"][i + 1] for i in range(len(ids) - 1)]
    got += [logprobs[-1, token] - value for token, value in case["last_top5"]]
    worst = float(np.abs(got).max())
    if not worst <= case["tolerance"]:
        return f"log-probability {worst:.1e}"
    if model.greedy(*model.prefill(ids), 24) != case["greedy"]:
        return "greedy tokens"
    state, _ = model.prefill(ids)
    step = case["dspark"]["steps"][0]
    drafts, confidence, _ = model.draft(state, step["anchor"])
    if drafts != step["draft"]:
        return "drafts"
    worst = float(np.abs(np.array(confidence) - step["confidence_logit"]).max())
    return f"confidence {worst:.1e}" if not worst <= case["confidence_tolerance"] else None


def main():
    golden = json.loads((DATA / "golden.json").read_text())
    cases = [case for case in golden["cases"] if "image" not in case]
    missed = []
    for name in [""] + (sys.argv[1:] or MUTATIONS):
        model = reference.Model(str(DATA), mut=[name] if name else [])
        found = None
        for case in cases:
            found = noticed(model, case)
            if found:
                print(f"{name or 'unchanged'}: {case['name']}: {found}", flush=True)
                break
        if bool(found) != bool(name and name not in INVISIBLE):
            missed.append(name or "unchanged")
            print(f"{name or 'unchanged'}: not as expected", flush=True)
    return f"not noticed as expected: {' '.join(missed)}" if missed else 0


if __name__ == "__main__":
    sys.exit(main())
