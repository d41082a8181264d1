"""Held-out figures of a trained model: loss, expert load, accepted draft length, samples."""

import torch

import ops
from config import ASSISTANT, BOS, END_THINK, EOS, USER
from engram import Hasher

OPENINGS = [
    'Once upon a time',
    'Once upon a time, there was a little rabbit named Lucy.',
    'One day, Tom went to the park',
    'The Congress of the United States',
    'A small boat on the lake',
]
QUESTIONS = [
    'Write a short story about a brave dog.',
    'What is rain?',
    'What does a cat eat?',
    'Tom has 3 apples and buys 4 more. How many apples does he have?',
]


def _exported(model, side, device):
    """Weights and functions as exported: rounded, the chosen entries only."""
    w = model.weights(torch.ones((), device=device))
    return w, Hasher(side, torch, device), torch.full((), -1e5, device=device)


@torch.no_grad()
def evaluate(model, side, held, device, length, windows=32):
    """Per source: loss per token, largest and smallest share of an expert over the mean (worst
    layer), and the tokens per verification when the first 24 tokens of documents are continued
    greedily with drafts."""
    w, hasher, far = _exported(model, side, device)
    out = {}
    for kind, (tokens, starts) in held.items():
        n = min(windows, (len(tokens) - 1) // length)
        if n == 0:
            continue
        t = tokens[: n * length + 1].long()
        ids, labels = (v.view(n, length).to(device) for v in (t[:-1], t[1:]))
        r = model(ids, hasher(ids), w, far, exact=True)
        loss = float(ops.token_loss(r['h'], w['head'], labels.flatten()))
        load = r['counts'].float() / r['counts'].float().mean(1, keepdim=True)
        out[kind] = dict(
            tokens=n * length,
            loss=round(loss, 4),
            load_max=round(float(load.max()), 2),
            load_min=round(float(load.min()), 2),
        )
        prompts = [tokens[s : s + 24].tolist() for s in starts[:16].tolist()]
        out[kind]['tokens_per_verification'] = round(
            speculate(model, side, prompts, device, length, 64)[1], 3
        )
    return out


@torch.no_grad()
def propose(model, w, ids, taps, at, anchor_ids):
    """Greedy drafts after positions at [B] -> [B, K] tokens."""
    c, B = model.c, ids.shape[0]
    collapsed, normed, _ = model.draft(anchor_ids, taps, at[:, None], w)
    normed, out = normed.view(B, c.dspark_block_size, -1), []
    prev = torch.gather(anchor_ids, 1, at[:, None] + 1)[:, 0]
    for k in range(c.dspark_block_size):
        logits = normed[:, k] @ w['head'].T + w['membed'][prev].to(normed.dtype) @ w['mhead'].T
        prev = logits.float().argmax(-1)
        out.append(prev)
    return torch.stack(out, 1)


@torch.no_grad()
def speculate(model, side, prompts, device, length, new):
    """Greedy generation with drafts -> token lists, tokens per verification."""
    w, hasher, far = _exported(model, side, device)
    B, K = len(prompts), model.c.dspark_block_size
    ids = torch.full((B, length), EOS, dtype=torch.long)
    for i, p in enumerate(prompts):
        ids[i, : len(p)] = torch.tensor(p)
    ids, n = ids.to(device), torch.tensor([len(p) for p in prompts], device=device)
    row, steps, emitted = torch.arange(B, device=device), 0, 0
    end = torch.minimum(n + new, torch.full_like(n, length - K - 2))
    run = lambda: model(ids, hasher(ids), w, far, exact=True)
    best = (
        lambda r, at: (r['h'].view(B, length, -1)[row[:, None], at] @ w['head'].T)
        .float()
        .argmax(-1)
    )
    out = run()
    ids[row, n] = best(out, (n - 1)[:, None])[:, 0]  # n tokens processed, the anchor at n
    finished = torch.zeros(B, dtype=torch.bool, device=device)
    while not bool(finished.all()):
        drafts = propose(model, w, ids, out['taps'], n - 1, ids)
        place = (n[:, None] + 1 + torch.arange(K, device=device)).clamp_max(length - 1)
        ids[row[:, None], place] = drafts
        out = run()
        truth = best(out, torch.cat([n[:, None], place], 1))  # K + 1 next tokens
        accepted = (drafts == truth[:, :K]).long().cumprod(1).sum(1)
        active = ~finished
        steps += int(active.sum())
        emitted += int((accepted + 1)[active].sum())
        n = torch.where(active, n + accepted + 1, n)
        ids[row, n] = torch.where(active, truth[row, accepted], ids[row, n])
        stop = torch.zeros_like(finished)
        for i in range(B):
            if bool(active[i]):
                stop[i] = bool((ids[i, len(prompts[i]) : int(n[i]) + 1] == EOS).any()) or int(
                    n[i]
                ) >= int(end[i])
        finished |= stop
    texts = []
    for i, p in enumerate(prompts):
        t = ids[i, : int(n[i]) + 1].tolist()
        cut = next((j for j in range(len(p), len(t)) if t[j] == EOS), len(t))
        texts.append(t[len(p) : cut])
    return texts, emitted / max(1, steps)


def samples(model, side, tokenizer, device, length, new=160):
    from tokenizers import Tokenizer

    tok = Tokenizer.from_str(tokenizer)
    prompts = [([BOS] if i % 2 else []) + tok.encode(o).ids for i, o in enumerate(OPENINGS)]
    prompts += [[BOS, USER] + tok.encode(q).ids + [ASSISTANT, END_THINK] for q in QUESTIONS]
    texts, rate = speculate(model, side, prompts, device, length, new)
    out = [dict(tokens_per_verification=round(rate, 3))]
    for p, t in zip(OPENINGS + QUESTIONS, texts):
        out.append(dict(prompt=p, text=tok.decode(t)))
    return out
