#!/usr/bin/env python3
"""A JSONL batch that is killed with SIGKILL in the middle and resumed: every line exactly once.

  tests/e2e/batch_resume.py BINARY MODEL [--lines N] [--kills K] [--ids LOW HIGH]

A run that is not killed in time (this process may be slow) dies all the same, in the middle of a
write: its output may not grow beyond a limit.
"""
import argparse
import json
import pathlib
import random
import resource
import signal
import subprocess
import tempfile
import time


def write_input(path, lines, ids, seed):
    rng = random.Random(seed)
    with open(path, "w") as out:
        for i in range(lines):
            if i % 97 == 13:
                out.write('{"prompt": [99999999]}\n')       # refused alone
                continue
            prompt = [rng.randrange(*ids) for _ in range(rng.randrange(1, 24))]
            params = {"max_tokens": rng.randrange(1, 12), "temperature": 0.8, "seed": i,
                      "ignore_eos": True}
            out.write(json.dumps({"id": f"line-{i}", "prompt": prompt, "params": params}) + "\n")


def command(args, source, target, *more):
    return [args.binary, "generate", "--model", args.model, "--input", str(source),
            "--output", str(target), *more]


def check(path, lines):
    rows = [json.loads(line) for line in open(path)]
    assert [row["index"] for row in rows] == list(range(lines)), "indices are not 0..n-1 in order"
    for i, row in enumerate(rows):
        if i % 97 == 13:
            assert row["error"]["param"], row
        else:
            assert row["id"] == f"line-{i}" and row["token_ids"], row
    return rows


def size(path):
    return path.stat().st_size if path.exists() else 0


def limit_files(limit):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--lines", type=int, default=10000)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--ids", type=int, nargs=2, default=[3, 300])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "in.jsonl"
        whole = pathlib.Path(folder) / "whole.jsonl"
        resumed = pathlib.Path(folder) / "resumed.jsonl"
        write_input(source, args.lines, args.ids, 1)
        done = subprocess.run(command(args, source, whole), capture_output=True, text=True)
        assert done.returncode == 1, (done.returncode, done.stderr)   # some lines are bad input
        expected = check(whole, args.lines)
        for kill in range(args.kills):
            share = size(whole) // (args.kills + 1)
            goal, limit = share * (kill + 1), share * (kill + 1) + share // 2
            run = subprocess.Popen(command(args, source, resumed, "--resume"),
                                   stderr=subprocess.DEVNULL,
                                   preexec_fn=lambda limit=limit: limit_files(limit))
            while run.poll() is None and size(resumed) < goal:
                time.sleep(0.002)
            run.send_signal(signal.SIGKILL)
            assert run.wait() in (-signal.SIGKILL, -signal.SIGXFSZ), "the run ended by itself"
            assert size(resumed) >= goal
            with open(resumed, "ab") as torn:
                torn.write(b'{"index": 12')                   # what a torn write leaves
        done = subprocess.run(command(args, source, resumed, "--resume"), capture_output=True,
                              text=True)
        assert done.returncode in (0, 1), done.stderr
        assert check(resumed, args.lines) == expected, "a resumed run differs from a whole one"
        print(f"{args.lines} lines, {args.kills} kills: every line exactly once, equal to one run")


if __name__ == "__main__":
    main()
