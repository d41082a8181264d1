"""Engram: compressed token map, hash constants (the engram.json sidecar) and row ids."""

import math
import unicodedata

import numpy as np


def normalize_key(text):
    text = unicodedata.normalize('NFD', unicodedata.normalize('NFKC', text))
    text = ''.join(ch for ch in text if unicodedata.category(ch)[0] != 'M')
    text = ''.join(ch.lower() for ch in text)
    out, in_run = [], False
    for ch in text:
        if ch in ' \t\r\n':
            if not in_run:
                out.append(' ')
            in_run = True
        else:
            out.append(ch)
            in_run = False
    text = ''.join(out)
    if text == ' ':
        return text
    space = lambda ch: ch.isspace() and not '\x1c' <= ch <= '\x1f'
    a, b = 0, len(text)
    while a < b and space(text[a]):
        a += 1
    while b > a and space(text[b - 1]):
        b -= 1
    return text[a:b]


def byte_alphabet():
    """Character of the byte-level alphabet -> byte."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    return {**{chr(b): b for b in keep}, **{chr(256 + i): b for i, b in enumerate(rest)}}


def token_map(tokenizer, vocab_size):
    """tokenizer.json as a dict -> (compressed id of every token id, number of distinct keys)."""
    by_id = {i: s for s, i in tokenizer['model']['vocab'].items()}
    added = {t['id']: t['content'] for t in tokenizer['added_tokens']}
    byte_of, keys, out = byte_alphabet(), {}, []
    for i in range(vocab_size):
        raw = added.get(i, by_id.get(i, ''))
        if i in added:
            text = raw
        else:
            text = bytes(byte_of[ch] for ch in raw).decode('utf-8', 'replace')
        key = raw if '\ufffd' in text else (normalize_key(text) or text)
        out.append(keys.setdefault(key, len(keys)))
    return out, len(keys)


def is_prime(n):
    return n > 1 and all(n % k for k in range(2, math.isqrt(n) + 1))


def sidecar(config, tokenizer):
    """All that a program needs to hash tokens into table rows."""
    tmap, count = token_map(tokenizer, config['vocab_size'])
    bound = max(1, ((2**63 - 1) // count) // 2)
    heads, orders = config['engram_n_heads'], config['engram_max_ngram_size'] - 1
    multipliers, primes, offsets = [], [], []
    at = config['engram_vocab_size'] - 1
    for layer in config['engram_layer_ids']:
        v = np.random.default_rng(10007 * layer).integers(
            0, bound, size=config['engram_max_ngram_size'], dtype=np.int64
        )
        multipliers.append([int(a) * 2 + 1 for a in v])
        flat = []
        while len(flat) < orders * heads:
            at += 1
            if is_prime(at):
                flat.append(at)
        primes.append([flat[i : i + heads] for i in range(0, len(flat), heads)])
        offsets.append([sum(flat[:i]) for i in range(len(flat))])
    return dict(
        compressed_vocab_size=count,
        pad=tmap[config['engram_pad_token_id']],
        token_map=tmap,
        layer_ids=config['engram_layer_ids'],
        multipliers=multipliers,
        primes=primes,
        offsets=offsets,
        rows=[sum(sum(p) for p in pr) for pr in primes],
    )


class Hasher:
    """Token ids [B, T] -> table rows [B, T, columns] per Engram layer, with torch integers."""

    def __init__(self, side, torch, device):
        self.torch, self.side = torch, side
        self.map = torch.tensor(side['token_map'], device=device, dtype=torch.int64)
        flat = lambda p: torch.tensor([q for row in p for q in row], device=device)
        self.primes = [flat(p) for p in side['primes']]
        self.offsets = [torch.tensor(o, device=device) for o in side['offsets']]
        self.heads = len(side['primes'][0][0])

    def __call__(self, ids):
        torch, side = self.torch, self.side
        c = self.map[ids]
        looks = [c]
        for s in range(1, len(side['multipliers'][0])):
            pad = torch.full_like(c[:, :s], side['pad'])
            looks.append(torch.cat([pad, c[:, :-s]], 1))
        out = []
        for mult, primes, offsets in zip(side['multipliers'], self.primes, self.offsets):
            r, cols = looks[0] * mult[0], []
            for i in range(1, len(looks)):
                r = r ^ (looks[i] * mult[i])
                cols.append(r[..., None].expand(*r.shape, self.heads))
            out.append(torch.cat(cols, -1) % primes + offsets)
        return out
