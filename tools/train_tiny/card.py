"""Prints the figures of a run as the last sections of the model card.
python3 card.py report.json >> README.md"""

import json
import sys


def main():
    r = json.load(open(sys.argv[1], encoding='utf-8'))
    print('\n## Figures of the bundled checkpoint\n')
    unique = ', '.join(f'{k} {n / 1e6:.2f} M' for k, n in r['unique_tokens'].items())
    print(
        f'{r["parameters"] / 1e6:.2f} M parameters, {r["bytes"]} bytes of tensors. '
        f'{r["steps"]} steps, '
        f'{r["tokens"] / 1e6:.0f} M tokens in {r["seconds"]:.0f} s; unique tokens: {unique} '
        '(windows are drawn by the shares in `data.py`, so every source was seen several times).\n'
    )
    print(
        '| held out | tokens | loss per token | expert load max / min | tokens per verification |'
    )
    print('|---|---|---|---|---|')
    for kind, v in r['held_out'].items():
        print(
            f'| {kind} | {v["tokens"]} | {v["loss"]} | {v["load_max"]} / {v["load_min"]} '
            f'| {v["tokens_per_verification"]} |'
        )
    print('\nLoad is the share of an expert over the mean of its layer, worst layer. Tokens per')
    print('verification: greedy, the first 24 tokens of 16 held-out documents continued by 64.\n')
    print('| step | loss | draft loss | index loss | accepted + 1 | overlap |')
    print('|---|---|---|---|---|---|')
    log = r['log']
    for line in log[:: max(1, len(log) // 10)] + log[-1:]:
        keys = ('step', 'loss', 'draft', 'index', 'accepted', 'overlap')
        print('| ' + ' | '.join(str(line[k]) for k in keys) + ' |')
    print('\nIn training, accepted + 1 is under teacher forcing.\n')
    print('## Samples (greedy, uncut choice)\n')
    for s in r['samples'][1:]:
        text = ' '.join(s['text'].split())
        print(f'- **{s["prompt"]}** {text}')


if __name__ == '__main__':
    main()
