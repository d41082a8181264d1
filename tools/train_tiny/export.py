"""Writes a trained model in the released V4.1 format: safetensors shards and index, config.json,
engram.json and the tokenizer files."""

import json
import struct
from pathlib import Path

import torch

from config import checkpoint_config
from quant import fp4_scale, fp8_scale, round_e2m1

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


class Writer:
    def __init__(self):
        self.tensors = {}

    def put(self, name, dtype, t):
        self.tensors[name] = (
            dtype,
            list(t.shape),
            t.contiguous().view(torch.uint8).numpy().tobytes(),
        )

    def f32(self, name, t):
        self.put(name, 'F32', t.float())

    def bf16(self, name, t):
        self.put(name, 'BF16', t.bfloat16())

    def scale(self, name, s):
        """E8M0: the exponent byte of a power of two."""
        self.put(name, 'F8_E8M0', (s.contiguous().view(torch.int32) >> 23).to(torch.uint8))

    def fp8(self, name, w, rows=32):
        s = fp8_scale(w, rows)
        wide = s.repeat_interleave(rows, -2).repeat_interleave(32, -1)
        self.put(name + '.weight', 'F8_E4M3', (w / wide).to(torch.float8_e4m3fn))
        self.scale(name + '.scale', s)

    def fp4(self, name, w):
        s = fp4_scale(w)
        v = round_e2m1(w / s.repeat_interleave(32, -1))
        code = torch.searchsorted(E2M1, v.abs()).to(torch.uint8) | ((v < 0).to(torch.uint8) << 3)
        self.put(name + '.weight', 'I8', code[:, ::2] | code[:, 1::2] << 4)
        self.scale(name + '.scale', s)

    def save(self, folder, shard_bytes):
        """Shards of at most shard_bytes in name order, and the index."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        groups, size = [[]], 0
        for name in sorted(self.tensors):
            n = len(self.tensors[name][2])
            if groups[-1] and size + n > shard_bytes:
                groups, size = groups + [[]], 0
            groups[-1].append(name)
            size += n
        files, total = {}, 0
        for i, names in enumerate(groups):
            file, head, at = f'model-{i + 1:05d}-of-{len(groups):05d}.safetensors', {}, 0
            for name in names:
                dtype, shape, data = self.tensors[name]
                head[name] = dict(dtype=dtype, shape=shape, data_offsets=[at, at + len(data)])
                at += len(data)
                files[name] = file
            text = json.dumps(
                {'__metadata__': {'format': 'pt'}, **head}, separators=(',', ':')
            ).encode()
            text += b' ' * (-len(text) % 8)
            with open(folder / file, 'wb') as f:
                f.write(struct.pack('<Q', len(text)) + text)
                for name in names:
                    f.write(self.tensors[name][2])
            total += at
        index = dict(metadata=dict(total_size=total), weight_map=files)
        text = json.dumps(index, separators=(',', ':')) + '\n'
        (folder / 'model.safetensors.index.json').write_text(text)
        return total


@torch.no_grad()
def tensors(model):
    c, L, w = model.c, model.c.layers, Writer()
    p = {n: t.detach().cpu() for n, t in [*model.p.named_parameters(), *model.p.named_buffers()]}
    w.bf16('embed.weight', p['embed'])
    w.bf16('head.weight', p['head'])
    w.bf16('norm.weight', p['norm'])
    for i in range(L + c.drafts):
        q = f'layers.{i}.' if i < L else f'mtp.{i - L}.'
        for site, name in enumerate(('attn', 'ffn')):
            w.bf16(q + name + '_norm.weight', p[name + '_norm'][i])
            w.f32(q + f'hc_{name}_fn', p['fn'][site, i].bfloat16())
            w.f32(q + f'hc_{name}_base', p['base'][site, i])
            w.f32(q + f'hc_{name}_scale', p['scale'][site, i])
        a, f = q + 'attn.', q + 'ffn.'
        for name in ('wq_a', 'wq_b', 'wkv', 'wo_a', 'wo_b'):
            w.fp8(a + name, p[name][i])
        w.bf16(a + 'q_norm.weight', p['q_norm'][i])
        w.bf16(a + 'kv_norm.weight', p['kv_norm'][i])
        w.f32(a + 'attn_sink', p['sink'][i])
        d, j = ('', i) if i < L else ('d', i - L)
        w.bf16(f + 'gate.weight', p[d + 'gate'][j])
        w.f32(f + 'gate.bias', p[d + 'bias'][j])
        w.f32(f + 'gate.bias_vl', p[d + 'bias'][j])
        for n in ('1', '2', '3'):
            w.fp8(f + 'shared_experts.w' + n, p['s' + n][i])
            for e, t in enumerate(p[d + 'w' + n][j]):
                w.fp4(f + f'experts.{e}.w' + n, t)
    pooled = 0
    for i, layer in enumerate(c.kv_source_layer_ids):
        a = f'layers.{layer}.attn.'
        w.bf16(a + 'compressor.wkv.weight', p['cwkv'][i])
        w.bf16(a + 'compressor.norm.weight', p['cnorm'][i])
        if c.ratio[layer] > 1:
            w.bf16(a + 'compressor.wgate.weight', p['cwgate'][pooled])
            pooled += 1
        w.bf16(a + 'indexer.wk.weight', p['iwk'][i])
        w.bf16(a + 'indexer.k_norm.weight', p['ik_norm'][i])
    for i, layer in enumerate(c.index_source_layer_ids):
        a = f'layers.{layer}.attn.indexer.'
        w.fp8(a + 'wq_b', p['iwq_b'][i])
        w.bf16(a + 'weights_proj.weight', p['iwp'][i])
    for i, layer in enumerate(c.engram_layer_ids):
        q = f'layers.{layer}.engram.'
        w.fp8(q + 'embed', p[f'tables.{i}'], rows=1)
        w.fp8(q + 'wkv', p['ewkv'][i])
        w.bf16(q + 'q_weight', p['eq'][i])
        w.bf16(q + 'k_weight', p['ek'][i])
    last = f'mtp.{c.drafts - 1}.'
    w.fp8('mtp.0.main_proj', p['main_proj'])
    w.bf16('mtp.0.main_norm.weight', p['main_norm'])
    w.bf16(last + 'norm.weight', p['dnorm'])
    w.bf16(last + 'markov_head.embed.weight', p['membed'])
    w.bf16(last + 'markov_head.head.weight', p['mhead'])
    w.bf16(last + 'confidence_head.proj.weight', p['conf'])
    return w


# The form of data.conversation: chat mode of the release without its effort line, not trained here.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}"
    "{{ '<｜Assistant｜></think>' + message.content + eos_token }}{% elif message.role == 'user' %}"
    "{{ '<｜User｜>' + message.content }}{% else %}"
    "{{ raise_exception('this model knows user and assistant alone, not ' + message.role) }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜></think>' }}{% endif %}"
)
GENERATION = {'temperature': 0.6, 'top_p': 0.95, 'repetition_penalty': 1.05}


def export(model, folder, side, tokenizer=None, shard_bytes=12 << 20):
    """tokenizer: tokenizer.json as text.  Returns the bytes of the tensors."""
    total = tensors(model).save(folder, shard_bytes)
    folder = Path(folder)
    text = dict(
        model.c.values,
        engram_num_embeddings=side['rows'],
        engram_compressed_vocab_size=side['compressed_vocab_size'],
    )
    (folder / 'config.json').write_text(json.dumps(checkpoint_config(text), indent=1) + '\n')
    (folder / 'engram.json').write_text(json.dumps(side, separators=(',', ':')) + '\n')
    if tokenizer:
        (folder / 'tokenizer.json').write_text(tokenizer)
        (folder / 'tokenizer_config.json').write_text(
            json.dumps(
                dict(
                    tokenizer_class='PreTrainedTokenizerFast',
                    add_bos_token=False,
                    bos_token='<｜begin▁of▁sentence｜>',
                    eos_token='<｜end▁of▁sentence｜>',
                    pad_token='<｜▁pad▁｜>',
                    chat_template=CHAT_TEMPLATE,
                ),
                ensure_ascii=False,
                indent=1,
            )
            + '\n'
        )
        (folder / 'generation_config.json').write_text(json.dumps(GENERATION) + '\n')
    return total
