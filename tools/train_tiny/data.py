"""Texts, tokenizer and token streams.
  python3 data.py --text DIR --written FILE.jsonl --out DIR [--vocab 4096]
reads the corpora (names below, plain or .xz) and the written documents, trains the tokenizer, and
stores tokens.pt: one stream per source, document starts, and a held-out part of each."""

import argparse
import json
import lzma
import os
import random
import re
import time

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from config import BOS, EOS, SPECIALS, TINY_V41
from engram import byte_alphabet, sidecar

# The split of the V3 and V4 tokenizers: digits by three, CJK runs, then words and punctuation.
SPLITS = [
    r'\p{N}{1,3}',
    '[一-龥\u3040-ゟ゠-ヿ]+',
    '[!"#$%&\'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+'
    '|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+'
    '| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+',
]
# Share of training windows per source (those that exist are scaled to one).
SHARES = dict(story=0.58, question=0.13, chat=0.08, speeches=0.11, shakespeare=0.03, maths=0.07)


def added_tokens():
    return [
        dict(
            id=i,
            content=s,
            single_word=False,
            lstrip=False,
            rstrip=False,
            normalized=False,
            special=s != '<｜deepseek_image｜>',
        )
        for i, s in enumerate(SPECIALS)
    ]


def plain_tokenizer():
    """A tokenizer.json of single bytes, for checks without training data."""
    vocab = {s: i for i, s in enumerate(SPECIALS)}
    for ch in sorted(byte_alphabet()):
        vocab[ch] = len(vocab)
    level = dict(type='ByteLevel', add_prefix_space=False, trim_offsets=True, use_regex=True)
    return dict(
        version='1.0',
        truncation=None,
        padding=None,
        added_tokens=added_tokens(),
        normalizer=None,
        pre_tokenizer=level,
        decoder=level,
        post_processor=None,
        model=dict(type='BPE', vocab=vocab, merges=[]),
    )


def conversation(user, answer):
    """A turn in chat mode as the release writes it, without the markers of the document."""
    return f'<｜User｜>{user}<｜Assistant｜></think>{answer}'


def read(folder, name):
    path = os.path.join(folder, name)
    if os.path.exists(path + '.xz'):
        return lzma.open(path + '.xz', 'rt', encoding='utf-8').read()
    if os.path.exists(path):
        return open(path, encoding='utf-8').read()
    print('no', name)
    return ''


def pieces(text, size):
    """Paragraph-like documents of about `size` characters."""
    out = ['']
    for line in re.split(r'(?<=\n\n)|(?<=[.!?] )', text):
        if len(out[-1]) > size:
            out.append('')
        out[-1] += line
    return [t.strip() for t in out if t.strip()]


def documents(folder, written):
    rng, docs = random.Random(3), {}
    docs['speeches'] = pieces(read(folder, 'state_of_the_union.txt'), 3000)
    docs['shakespeare'] = pieces(read(folder, 'tinyshakespeare.txt'), 2000)
    docs['maths'] = []
    for part in ('train',):
        for line in read(folder, f'gsm8k_{part}.jsonl').splitlines():
            j = json.loads(line)
            answer = re.sub(r'<<.*?>>', '', j['answer']).replace('\n####', '\nThe answer is')
            docs['maths'].append(conversation(j['question'], answer))
    for line in open(written, encoding='utf-8') if written else []:
        j = json.loads(line)
        text = j['text']
        # Half of the stories stand alone, so that a bare opening is continued.
        if j['kind'] != 'story' or rng.random() < 0.5:
            text = conversation(j['prompt'], text)
        docs.setdefault(j['kind'], []).append(text)
    for d in docs.values():
        rng.shuffle(d)
    return {k: d for k, d in docs.items() if d}


def train_tokenizer(docs, vocab):
    rng, texts, budget = random.Random(4), [], {k: 40e6 * SHARES[k] for k in docs}
    for kind, d in docs.items():
        for text in d:
            if budget[kind] <= 0:
                break
            budget[kind] -= len(text)
            texts.append(re.sub(r'<｜\w+｜>|</think>', ' ', text))
    rng.shuffle(texts)
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(p), 'isolated') for p in SPLITS]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    t.decoder = decoders.ByteLevel()
    special = [
        AddedToken(s, normalized=False, special=s != '<｜deepseek_image｜>') for s in SPECIALS
    ]
    t.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab,
            special_tokens=special,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    j = json.loads(t.to_str())
    j['added_tokens'] = added_tokens()
    assert t.get_vocab_size() == vocab, t.get_vocab_size()
    return Tokenizer.from_str(json.dumps(j)), json.dumps(j, ensure_ascii=False, indent=1) + '\n'


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--text', required=True)
    ap.add_argument('--written')
    ap.add_argument('--out', required=True)
    ap.add_argument('--vocab', type=int, default=4096)
    args = ap.parse_args()
    start, rng = time.time(), np.random.default_rng(5)
    docs = documents(args.text, args.written)
    tok, text = train_tokenizer(docs, args.vocab)
    print(f'tokenizer after {time.time() - start:.1f} s', flush=True)
    os.makedirs(args.out, exist_ok=True)
    side = sidecar(dict(TINY_V41, vocab_size=args.vocab), json.loads(text))
    out, held = {}, {}
    for kind, d in docs.items():
        ids = [[BOS] + e.ids + [EOS] for e in tok.encode_batch(d)]
        split = max(1, len(ids) // 50)
        for name, part in ((kind, ids[split:]), ('held', ids[:split])):
            flat = torch.tensor(np.concatenate([np.array(p, np.int32) for p in part]))
            starts = torch.tensor(np.cumsum([0] + [len(p) for p in part[:-1]]))
            if name == 'held':
                held[kind] = (flat, starts)
            else:
                out[kind] = (flat, starts)
        chars = sum(map(len, d))
        print(
            f'{kind}: {len(d)} documents, {chars} characters, {len(out[kind][0])} tokens, '
            f'{chars / sum(map(len, ids)):.2f} characters a token',
            flush=True,
        )
    torch.save(
        dict(train=out, held=held, tokenizer=text, side=side, shares={k: SHARES[k] for k in out}),
        os.path.join(args.out, 'tokens.pt'),
    )
    with open(os.path.join(args.out, 'heldout.txt'), 'w', encoding='utf-8') as f:
        for kind, d in docs.items():
            for t in d[: max(1, len(d) // 50)][:40]:
                f.write(json.dumps(dict(kind=kind, text=t), ensure_ascii=False) + '\n')
    print(
        f'data after {time.time() - start:.1f} s; Engram rows {side["rows"]}, compressed '
        f'vocabulary {side["compressed_vocab_size"]}',
        flush=True,
    )


if __name__ == '__main__':
    main()
