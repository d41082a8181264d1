"""Lets SmolLM2-135M-Instruct write the stories, questions and answers that the small model learns
from.  Reads the GGUF file itself (Q4_1, Q8_0, F32), decodes thousands of sequences side by side.
  python3 generate_text.py --model smollm2.gguf --out text.jsonl --seconds 100"""

import argparse
import json
import math
import mmap
import random
import struct
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from engram import byte_alphabet
from prompts import draw, writer_message

END = 2  # <|im_end|>


class Gguf:
    SCALARS = {
        0: 'B',
        1: 'b',
        2: 'H',
        3: 'h',
        4: 'I',
        5: 'i',
        6: 'f',
        7: '?',
        10: 'Q',
        11: 'q',
        12: 'd',
    }

    def __init__(self, path):
        with open(path, 'rb') as f:
            self.data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        self.at = 4
        assert self.data[:4] == b'GGUF'
        self.one('I')
        count, keys = self.one('Q'), self.one('Q')
        self.meta = {}
        for _ in range(keys):
            key = self.text()
            self.meta[key] = self.value(self.one('I'))
        self.tensors = {}
        for _ in range(count):
            name = self.text()
            shape = [self.one('Q') for _ in range(self.one('I'))][::-1]
            self.tensors[name] = (shape, self.one('I'), self.one('Q'))
        align = self.meta.get('general.alignment', 32)
        self.base = -(-self.at // align) * align

    def one(self, fmt):
        (v,) = struct.unpack_from('<' + fmt, self.data, self.at)
        self.at += struct.calcsize('<' + fmt)
        return v

    def text(self):
        n = self.one('Q')
        self.at += n
        return self.data[self.at - n : self.at].decode('utf-8', 'replace')

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            kind, n = self.one('I'), self.one('Q')
            return [self.value(kind) for _ in range(n)]
        return self.one(self.SCALARS[kind])

    def tensor(self, name):
        shape, kind, at = self.tensors[name]
        n, at = int(np.prod(shape)), self.base + at
        if kind == 0:
            return torch.from_numpy(np.frombuffer(self.data, '<f4', n, at).copy()).view(shape)
        fields = {
            3: [('d', '<f2'), ('m', '<f2'), ('q', 'u1', 16)],
            8: [('d', '<f2'), ('q', 'i1', 32)],
        }
        b = np.frombuffer(self.data, fields[kind], n // 32, at)
        if kind == 8:
            v = b['d'].astype('f4')[:, None] * b['q']
        else:
            q = np.concatenate([b['q'] & 15, b['q'] >> 4], 1)
            v = b['d'].astype('f4')[:, None] * q + b['m'].astype('f4')[:, None]
        return torch.from_numpy(v).view(shape)


def norm(x, w):
    f = x.float()
    return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + 1e-5) * w).to(x.dtype)


def before_attention(x, w, qkv, cos, sin):
    """-> rotated queries and keys (one head list), values; all rows are at one position."""
    y = (norm(x, w) @ qkv.T).view(x.shape[0], 15, 64)
    f = y[:, :12].float().unflatten(-1, (-1, 2))
    a, b = f[..., 0], f[..., 1]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)
    return turned[:, :9].reshape(-1, 3, 3, 64), turned[:, 9:].contiguous(), y[:, 12:].contiguous()


def after_attention(x, o, wo, w, up, down):
    x = x + o.reshape(x.shape[0], -1) @ wo.T
    g, u = (norm(x, w) @ up.T).chunk(2, -1)
    return x + (F.silu(g.float()) * u.float()).to(x.dtype) @ down.T


def sample(x, w, embed, temperature, min_p):
    z = (norm(x, w) @ embed.T).float()
    floor = z.amax(-1, keepdim=True) + temperature * math.log(min_p)
    noise = -torch.log(-torch.log(torch.rand_like(z).clamp(1e-20, 1 - 1e-7)))
    return torch.where(z < floor, -1e30, z / temperature + noise).argmax(-1)


class Writer:
    def __init__(self, gguf, device, dtype, compile):
        get = lambda n: gguf.tensor(n).to(device)
        self.layers = []
        for i in range(gguf.meta['llama.block_count']):
            p = f'blk.{i}.'
            m = lambda *names: torch.cat([get(p + n + '.weight') for n in names]).to(dtype)
            self.layers.append(
                (
                    get(p + 'attn_norm.weight'),
                    m('attn_q', 'attn_k', 'attn_v'),
                    m('attn_output'),
                    get(p + 'ffn_norm.weight'),
                    m('ffn_gate', 'ffn_up'),
                    m('ffn_down'),
                )
            )
        self.embed, self.norm = get('token_embd.weight').to(dtype), get('output_norm.weight')
        self.freq = float(gguf.meta['llama.rope.freq_base']) ** (-torch.arange(0, 64, 2) / 64)
        self.device, self.dtype = device, dtype
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compile else (lambda f: f)
        self.before, self.after, self.sample = map(
            wrap, (before_attention, after_attention, sample)
        )

    @torch.no_grad()
    def write(self, prompts, length, temperature, min_p):
        """prompts: lists of ids -> [B, length] tokens; a prompt is fed token by token, so all rows
        share one position."""
        B, dev = len(prompts), self.device
        forced = torch.full((B, length), -1)
        for i, p in enumerate(prompts):
            forced[i, : len(p)] = torch.tensor(p)
        forced, out = forced.to(dev), torch.zeros(B, length, dtype=torch.int64, device=dev)
        keys, values = (
            torch.empty(len(self.layers), B, 3, length, 64, dtype=self.dtype, device=dev)
            for _ in range(2)
        )
        angle = torch.arange(length)[:, None].float() * self.freq
        cos, sin = angle.cos().to(dev), angle.sin().to(dev)
        done, token = torch.zeros(B, dtype=torch.bool, device=dev), forced[:, 0]
        out[:, 0] = token
        for t in range(length - 1):
            x = self.embed[token]
            for i, (w1, qkv, wo, w2, up, down) in enumerate(self.layers):
                q, k, v = self.before(x, w1, qkv, cos[t], sin[t])
                keys[i, :, :, t], values[i, :, :, t] = k, v
                o = F.scaled_dot_product_attention(
                    q, keys[i, :, :, : t + 1], values[i, :, :, : t + 1]
                )
                x = self.after(x, o, wo, w2, up, down)
            token = self.sample(x, self.norm, self.embed, temperature, min_p)
            token = torch.where(forced[:, t + 1] >= 0, forced[:, t + 1], token)
            done |= (token == END) & (forced[:, t + 1] < 0)
            out[:, t + 1] = token
            if t % 32 == 31 and float(done.float().mean()) > 0.985:
                break
        return out.cpu().numpy()


def tokenizer(meta):
    vocab = {s: i for i, s in enumerate(meta['tokenizer.ggml.tokens'])}
    merges = [tuple(m.split(' ', 1)) for m in meta['tokenizer.ggml.merges']]
    t = Tokenizer(models.BPE(vocab, merges))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r'\p{N}'), 'isolated'),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return t


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--model', required=True)
    ap.add_argument('--out', required=True)
    ap.add_argument('--seconds', type=float, default=100)
    ap.add_argument('--batch', type=int, default=4096)
    ap.add_argument('--length', type=int, default=420)
    ap.add_argument('--seed', type=int, default=0)
    ap.add_argument('--rounds', type=int, default=1000)
    ap.add_argument('--temperature', type=float, default=0.7)
    ap.add_argument('--min-p', type=float, default=0.1)
    args = ap.parse_args()
    start = time.time()
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    cuda = torch.cuda.is_available()
    gguf = Gguf(args.model)
    writer = Writer(
        gguf, 'cuda' if cuda else 'cpu', torch.bfloat16 if cuda else torch.float32, cuda
    )
    enc = tokenizer(gguf.meta)
    alphabet = byte_alphabet()
    spell = [bytes(alphabet.get(ch, 32) for ch in s) for s in gguf.meta['tokenizer.ggml.tokens']]
    ids = lambda s: enc.encode(s).ids
    system = (
        [1]
        + ids('system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face')
        + [END]
        + ids('\n')
        + [1]
        + ids('user\n')
    )
    between = [END] + ids('\n') + [1] + ids('assistant\n')
    documents, tokens, spent = 0, 0, 0.0
    print(f'ready after {time.time() - start:.1f} s', flush=True)
    with open(args.out, 'w') as f:
        for n in range(args.rounds):
            if n and time.time() - start + spent > args.seconds:
                break
            begin = time.time()
            drawn = [draw(rng) for _ in range(args.batch)]
            texts = enc.encode_batch([writer_message(k, u) for k, u, _ in drawn])
            opens = enc.encode_batch([o.rstrip() for _, _, o in drawn])
            prompts = [system + t.ids + between + o.ids for t, o in zip(texts, opens)]
            # Other backends may plan anew for every length.
            with sdpa_kernel(
                [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
            ):
                result = writer.write(prompts, args.length, args.temperature, args.min_p)
            for (kind, user, opening), p, row in zip(drawn, prompts, result):
                row = row[len(p) :].tolist()
                ended = END in row
                row = row[: row.index(END)] if ended else row
                text = b''.join(spell[t] for t in row).decode('utf-8', 'ignore')
                if not ended:
                    text = text[: max(text.rfind(ch) for ch in '.!?') + 1]
                text = (opening.rstrip() + text).strip()
                if len(text) > 20 and (ended or kind == 'story'):
                    f.write(
                        json.dumps(dict(kind=kind, prompt=user, text=text), ensure_ascii=False)
                        + '\n'
                    )
                    documents, tokens = documents + 1, tokens + len(row)
            f.flush()
            spent = time.time() - begin
            print(f'round {n}: {spent:.1f} s, {documents} documents, {tokens} tokens', flush=True)


if __name__ == '__main__':
    main()
