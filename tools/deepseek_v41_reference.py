#!/usr/bin/env python3
"""DeepSeek-V4.1 in NumPy, independent of the C++ code: loader, forward, state, drafts, vision encoder.

Conventions.  T rows (tokens) of one request, D hidden, n = 4 streams, H heads, d head_dim, R compress ratio.
Activations are never rounded to bf16: dequantized weights, float32 (or float64) arithmetic, and the only rounding
is the fake quantization that belongs to the model, which always works in float32.
Ties: equal score -> lower index first.  Experts are summed in ascending id.
Model(mut=[name]) drops or alters one term; mutation_reference.py shows that the records notice each.
"""
import json, math, os, struct
import numpy as np

F32, F64, I64 = np.float32, np.float64, np.int64
DEAD = -1                                               # engram history: no token / image-span token

# ============================================================ 1. number formats (2.1, 2.2)
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], F32)
E4M3 = np.array([(c & 7) * 2.0**-9 if c < 8 else (1 + (c & 7) / 8) * 2.0**((c >> 3) - 7) for c in range(127)], F32)


def rne_code(mag, table):
    """Index of the nearest table value (table = the non-negative codes in order), ties to the even code."""
    mid = (table[1:].astype(F64) + table[:-1]) / 2
    lo, hi = np.searchsorted(mid, mag, 'left'), np.searchsorted(mid, mag, 'right')
    return np.where(lo == hi, lo, np.where(lo % 2 == 0, lo, hi))


def round_to(x, table):
    return np.copysign(table[rne_code(np.abs(x), table)], x)


def pow2ceil(t):
    """2^ceil(log2 t) for normal float32 t > 0, by exponent/mantissa bits."""
    b = np.ascontiguousarray(t, F32).view(np.int32)
    return np.ldexp(F32(1), ((b >> 23) & 255) - 127 + ((b & 0x7FFFFF) != 0)).astype(F32)


QUANT_WATCH = None                                      # generator only: called with (table, |x/s|)


def _fake_quant(x, B, scale_fn, table):
    """Shared body of the three quantizers; works in float32 whatever x.dtype is."""
    if x.shape[-1] % B or x.size == 0:
        return x
    b = x.astype(F32).reshape(*x.shape[:-1], -1, B)
    s = scale_fn(np.abs(b).max(-1, keepdims=True))
    top = table[-1]
    if QUANT_WATCH:
        QUANT_WATCH(table, np.abs(b / s))
    return (round_to(np.clip(b / s, -top, top), table) * s).reshape(x.shape).astype(x.dtype)


def fp8q(x, B=32):                                      # window KV: e4m3, ue8m0 scale
    return _fake_quant(x, B, lambda a: pow2ceil(np.maximum(a, F32(1e-4)) * F32(1 / 448)), E4M3)


def fp4q_ue8m0(x, B=32):                                # indexer q and k: e2m1, ue8m0 scale
    return _fake_quant(x, B, lambda a: pow2ceil(np.maximum(a, F32(6 * 2.0**-126)) * F32(1 / 6)), E2M1)


def fp4q_e4m3(x, B=16):                                 # compressed KV: e2m1, e4m3 scale (a true division by 6)
    return _fake_quant(x, B, lambda a: round_to(np.maximum(a, F32(6 * 2.0**-9)) / F32(6), E4M3), E2M1)


def bf16_bits(x):
    b = np.ascontiguousarray(x, F32).view(np.uint32)
    return ((b + 0x7FFF + ((b >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_value(bits):
    return (bits.astype(np.uint32) << 16).view(F32)


def e4m3_value(c):
    return np.where(c & 128, -1, 1).astype(F32) * E4M3[c & 127]


def e8m0_value(b):
    return np.ldexp(F32(1), b.astype(np.int32) - 127).astype(F32)   # b = 0 is a float32 subnormal, kept


# ============================================================ 2. safetensors
ST = {'F32': F32, 'BF16': np.uint16, 'F8_E4M3': np.uint8, 'F8_E8M0': np.uint8, 'I8': np.uint8}


class Ckpt:
    """Reads one or many safetensors files; get(name) returns the dequantized float32 tensor."""

    def __init__(self, d, block=(32, 32)):
        self.block, self.dir, self.swap = block, {}, False
        files = [f for f in sorted(os.listdir(d)) if f.endswith('.safetensors')]
        for f in files:
            buf = np.memmap(os.path.join(d, f), np.uint8, 'r')
            hl = struct.unpack('<Q', buf[:8].tobytes())[0]
            for k, v in json.loads(buf[8:8 + hl].tobytes()).items():
                if k != '__metadata__':
                    a, b = v['data_offsets']
                    self.dir[k] = (v['dtype'], tuple(v['shape']), buf[8 + hl + a:8 + hl + b])

    def raw(self, name):
        dt, shape, buf = self.dir[name]
        return dt, np.frombuffer(buf.tobytes(), ST[dt]).reshape(shape)

    def get(self, name):
        dt, w = self.raw(name)
        if dt == 'F32':
            return w
        if dt == 'BF16':
            return bf16_value(w)
        s = e8m0_value(self.raw(name[:-len('weight')] + 'scale')[1])
        if dt == 'I8':                                  # MXFP4: low nibble = even column, 1 row x 32 columns per scale
            code = np.stack([w & 15, w >> 4][::-1 if self.swap else 1], -1).reshape(w.shape[0], -1)
            v = E2M1[code & 7] * np.where(code & 8, -1, 1).astype(F32)
            return v * np.repeat(s, 32, 1)[:, :v.shape[1]]
        rows = 1 if s.shape[0] == w.shape[0] else self.block[0]          # engram tables: one scale per row
        return e4m3_value(w) * np.repeat(np.repeat(s, rows, 0)[:w.shape[0]], self.block[1], 1)[:, :w.shape[1]]


def write_safetensors(path, tensors):
    """tensors: {name: (dtype string, ndarray)}"""
    head, off = {'__metadata__': {'format': 'pt'}}, 0
    for k, (dt, a) in tensors.items():
        head[k] = dict(dtype=dt, shape=list(a.shape), data_offsets=[off, off + a.nbytes])
        off += a.nbytes
    h = json.dumps(head, separators=(',', ':')).encode()
    h += b' ' * (-len(h) % 8)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(h)) + h)
        for _, a in tensors.values():
            f.write(np.ascontiguousarray(a).tobytes())


# ============================================================ 3. config
class Cfg:
    """Attribute view of text_config (+ .vis for vision_config, top-level ids), with the parser traps of 1.2."""

    def __init__(self, j):
        t = j.get('text_config', j)
        self.__dict__.update(t)
        self.image_token_id = j.get('image_token_id', -2)
        self.block = tuple((j.get('quantization_config') or {}).get('weight_block_size', (32, 32)))
        self.eps = float(t['rms_norm_eps'])
        self.pad_tok = t.get('engram_pad_token_id', t.get('engram_pad_id', 2))
        self.ratio = list(t['compress_ratios']) + [0] * 64                # past the end: ratio 0
        self.kv_src, self.ix_src = t['kv_source_layer_ids'], t['index_source_layer_ids']
        self.boundary = next((i for i in self.kv_src if self.ratio[i] == 1), None)   # first decoder (CED) layer
        v = j.get('vision_config')
        self.vis = type('Vis', (), v) if v else None

    def owner(self, L):
        return max(i for i in self.kv_src if i <= L)


# ============================================================ 4. request contexts
class Whole:
    """Storage of ONE whole-sequence pass: nothing survives, keys are exactly the rows of this call."""

    def __init__(self, m):
        self.m, self.hist, self.main, self.key, self.sel, self.cand = m, np.zeros(0, I64), {}, {}, None, None

    def window(self, L, pos, kv):                       # -> keys [S,d], their positions [S]
        return kv, pos

    def groups(self, L, R, pos, k, g):
        """Complete groups of R rows: k,g [T,c] -> [G,R,c] x2 and entry numbers [G]."""
        n = len(pos) // R
        return k[:n * R].reshape(n, R, k.shape[1]), g[:n * R].reshape(n, R, k.shape[1]), np.arange(n)

    def put(self, L, e, key):
        self.main[L], self.key[L] = e, key


class State:
    """Per-request persistent state (6.2): rings, compressor tails, caches, engram history, draft rings.
    It serves chunked prefill, decode, draft verification with rollback, and both bounded replays."""

    def __init__(self, m):
        c = m.c
        self.m, self.n = m, 0                           # n = committed tokens
        self.rsize = c.sliding_window + c.dspark_block_size + 2
        new = lambda rows: [np.zeros((rows, c.head_dim), m.dt), np.full(rows, -1, I64)]
        self.ring = [new(self.rsize) for _ in range(c.num_hidden_layers)]
        self.dring = [new(c.sliding_window) for _ in range(c.num_nextn_predict_layers)]
        self.main = {L: np.zeros((0, c.head_dim), m.dt) for L in c.kv_src}
        self.key = {L: np.zeros((0, c.index_head_dim), m.dt) for L in c.kv_src}
        self.tail = {L: {} for L in c.kv_src}           # position -> (k, g), only the newest few are needed
        self.hist, self.sel, self.cand = np.zeros(0, I64), None, None

    def window(self, L, pos, kv):
        rows, at = self.ring[L]
        old = (at >= 0) & (at < pos[0]) & (at > pos[0] - self.m.c.sliding_window)   # left by earlier calls
        ok, op = rows[old].copy(), at[old].copy()
        order = np.argsort(op)
        new = pos >= pos[-1] - self.rsize + 1
        rows[pos[new] % self.rsize], at[pos[new] % self.rsize] = kv[new], pos[new]
        return np.concatenate([ok[order], kv]), np.concatenate([op[order], pos])

    def groups(self, L, R, pos, k, g):
        t = self.tail[L]
        for i, p in enumerate(pos):
            t[int(p)] = (k[i], g[i])
        js = range(len(self.main[L]), (int(pos[-1]) + 1) // R)            # entries below are never rewritten
        kk = [[t[R * j + i][0] for i in range(R)] for j in js]
        gg = [[t[R * j + i][1] for i in range(R)] for j in js]
        for p in [p for p in t if p < pos[-1] - 64]:
            del t[p]
        sh = (len(js), R, k.shape[1])
        return np.array(kk, k.dtype).reshape(sh), np.array(gg, k.dtype).reshape(sh), np.array(js, I64)

    def put(self, L, e, key):
        self.main[L], self.key[L] = np.concatenate([self.main[L], e]), np.concatenate([self.key[L], key])

    def truncate(self, n):
        """Drop everything a rejected draft wrote: caches to floor(n/R), tails, history; rings heal by position."""
        self.n, self.hist = n, self.hist[:n]
        for L in self.main:
            k = n // self.m.c.ratio[L]
            self.main[L], self.key[L] = self.main[L][:k], self.key[L][:k]
            self.tail[L] = {p: v for p, v in self.tail[L].items() if p < n}

    def forget_decoder(self):
        """A bounded replay starts: decoder and draft rings hold nothing older than the suffix."""
        for at in [a for _, a in self.ring[self.m.c.boundary:]] + [a for _, a in self.dring]:
            at[:] = -1

    @staticmethod
    def from_prefix(donor, hit):
        """Prefix-cache hit of `hit` tokens: only the global caches and the token history are restored."""
        s = State(donor.m)
        s.n, s.hist = hit, donor.hist[:hit].copy()
        for L in s.main:
            k = hit // donor.m.c.ratio[L]
            s.main[L], s.key[L] = donor.main[L][:k].copy(), donor.key[L][:k].copy()
        return s


# ============================================================ 5. the model
def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Reject(Exception):
    """A decision margin below Model.reject_below (generator only)."""


class Model:
    reject_below, track, probe = 0.0, True, None

    def __init__(self, d, dtype=F32, qat=True, mut=(), noise=0.0, seed=0):
        self.c = c = Cfg(json.load(open(os.path.join(d, 'config.json'))))
        self.ck, self.dt, self.mut, self.noise = Ckpt(d, c.block), dtype, frozenset(mut), noise
        self.ck.swap = 'fp4_nibble' in self.mut
        self.cache, self.rng = {}, np.random.default_rng(seed)
        self.qat = qat
        self.marg = {}
        side = os.path.join(d, 'engram.json')
        self.eng = json.load(open(side)) if c.engram_layer_ids else None
        self.tables = {k: self._inv_freq(k) for k in ('main', 'compress')}

    # ---------------------------------------------------------------- small helpers
    def off(self, name):
        return name in self.mut

    def w(self, name):
        if name not in self.cache:
            self.cache[name] = self.ck.get(name).astype(self.dt)
        return self.cache[name]

    def lin(self, x, name, wname='weight'):
        w = self.w(name + '.' + wname if wname else name)
        y = x @ w.T
        if self.noise:                                  # imitates another summation order
            y = y * (1 + self.noise * self.rng.standard_normal(y.shape)).astype(self.dt)
        return y

    def rms(self, x, name, eps=None):
        e = self.c.eps if eps is None else eps
        if self.off('rms_eps_1e-6'):
            e = 1e-6
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.dt(e))
        return y * self.w(name) if name else y

    def margin(self, kind, gap):
        if gap.size and self.track:
            self.marg[kind] = min(self.marg.get(kind, 1e9), float(gap.min()))
            if self.marg[kind] < self.reject_below:
                raise Reject(kind)

    def topk_mask(self, s, k, kind):
        """s [T,N] with -inf = not selectable -> bool mask of the k best, lower index first on ties."""
        T, N = s.shape
        order = np.argsort(-s, 1, kind='stable')
        m = np.zeros((T, N), bool)
        np.put_along_axis(m, order[:, :k], True, 1)
        if N > k:
            v = np.take_along_axis(s, order[:, k - 1:k + 1], 1)
            v = v[np.isfinite(v).all(1)]
            self.margin(kind, v[:, 0] - v[:, 1])
        return m & (s > -np.inf)

    # ---------------------------------------------------------------- rope (5.1)
    def _inv_freq(self, kind):
        """float32 inverse frequencies [r/2]; angles are float32(pos)*float32(inv) as torch does."""
        c, r = self.c, self.c.qk_rope_head_dim
        base = c.rope_theta if kind == 'main' or self.off('compress_theta') else c.compress_rope_theta
        f = float(base) ** (-np.arange(0, r, 2) / r)
        sc = getattr(c, 'rope_scaling', None) or {}
        if kind == 'compress' and sc.get('type', sc.get('rope_type')) == 'yarn' and not self.off('yarn'):
            dim = lambda b: r * math.log(sc['original_max_position_embeddings'] / (b * 2 * math.pi)) / (2 * math.log(base))
            lo, hi = max(math.floor(dim(sc['beta_fast'])), 0), min(math.ceil(dim(sc['beta_slow'])), r - 1)
            ramp = np.clip((np.arange(r // 2) - lo) / max(hi - lo, .001), 0, 1)
            f = f / sc['factor'] * ramp + f * (1 - ramp)
        return f.astype(F32)

    def rope(self, x, pos, kind, inverse=False):
        """Rotate the interleaved pairs of the last r channels. x [T,d] or [T,H,d], pos [T]."""
        ang = (np.asarray(pos).astype(F32)[:, None] * self.tables[kind]).astype(F64)
        co, si = np.cos(ang).astype(self.dt), np.sin(ang).astype(self.dt) * (-1 if inverse else 1)
        if x.ndim == 3:
            co, si = co[:, None], si[:, None]
        r, y = self.c.qk_rope_head_dim, x.copy()
        a, b = x[..., -r::2], x[..., 1 - r::2]
        y[..., -r::2], y[..., 1 - r::2] = a * co - b * si, a * si + b * co
        return y

    # ---------------------------------------------------------------- mHC (4)
    def mixes(self, x, p):
        """x [T,4,D] -> pre [T,4], post [T,4], comb [T,4,4]."""
        c, n = self.c, self.c.hc_mult
        f = x.reshape(len(x), -1)
        eps = self.dt(1e-6 if self.off('rms_eps_1e-6') else c.eps)
        m = self.lin(f, p + 'fn', None) / np.sqrt((f * f).mean(-1, keepdims=True) + eps)
        s, b, he = self.w(p + 'scale'), self.w(p + 'base'), self.dt(0 if self.off('hc_eps') else c.hc_eps)
        pre = sigmoid(m[:, :n] * s[0] + b[:n]) + he
        post = (1 if self.off('post_x2') else 2) * sigmoid(m[:, n:2 * n] * s[1] + b[n:2 * n])
        C = (m[:, 2 * n:] * s[2] + b[2 * n:]).reshape(-1, n, n)
        C = np.exp(C - C.max(-1, keepdims=True))
        C = C / C.sum(-1, keepdims=True) + he
        C = C / (C.sum(-2, keepdims=True) + he)
        for _ in range(0 if self.off('sinkhorn') else c.hc_sinkhorn_iters - 1):
            C = C / (C.sum(-1, keepdims=True) + he)
            C = C / (C.sum(-2, keepdims=True) + he)
        return pre, post, C

    @staticmethod
    def collapse(x, pre):
        return (pre[:, :, None] * x).sum(1)

    def expand(self, y, x, post, C):
        """out_k = post_k y + sum_j C[j,k] x_j"""
        if not self.off('comb_transpose'):
            C = np.swapaxes(C, 1, 2)
        return post[:, :, None] * y[:, None] + C @ x

    def block(self, p, x, pre, u, attend, moe):
        """One layer after its collapse: u is the normed attention input. Returns streams, next pre, parts."""
        a_pre, a_post, a_C = self.mixes(x, p + 'hc_attn_')
        y = attend(u)
        x = self.expand(y, x, a_post, a_C)
        f_pre, f_post, f_C = self.mixes(x, p + 'hc_ffn_')
        v = self.rms(self.collapse(x, f_pre if self.off('pre_next_site') else a_pre), p + 'ffn_norm.weight')
        z, ids = moe(v)
        return self.expand(z, x, f_post, f_C), f_pre, y, z, ids

    # ---------------------------------------------------------------- attention (5)
    def qkv(self, p, u, pos, kind):
        c = self.c
        qr = self.rms(self.lin(u, p + 'wq_a'), p + 'q_norm.weight')
        q = self.rope(self.lin(qr, p + 'wq_b').reshape(len(u), c.num_attention_heads, c.head_dim), pos, kind)
        return qr, q, self.window_row(p, u, pos, kind)

    def window_row(self, p, u, pos, kind):
        kv = self.rope(self.rms(self.lin(u, p + 'wkv'), p + 'kv_norm.weight'), pos, kind)
        return fp8q(kv, 32) if self.qat and not self.off('qat_window') else kv

    def sink_attention(self, p, q, keys, mask):
        """q [T,H,d], keys [S,d] (K == V), mask [T,S] -> [T,H,d]; the sink only enlarges the denominator."""
        s = np.where(mask[:, None], (q @ keys.T) * self.dt(self.c.head_dim ** -.5), -np.inf)
        sink = self.w(p + 'attn_sink')[None, :, None]
        m = np.maximum(s.max(-1, keepdims=True), sink)
        e = np.exp(s - m)
        return (e / (e.sum(-1, keepdims=True) + (0 if self.off('sink') else np.exp(sink - m)))) @ keys

    def out_proj(self, p, o, pos, kind):
        c = self.c
        if not self.off('inverse_rope'):
            o = self.rope(o, pos, kind, inverse=True)
        o = o.reshape(len(o), c.o_groups, 1, -1)                                   # [T,G,1,H*d/G]
        wa = self.w(p + 'wo_a.weight').reshape(c.o_groups, c.o_lora_rank, -1)      # group g = rows g*r..g*r+r-1
        return self.lin((o @ np.swapaxes(wa, 1, 2)).reshape(len(o), -1), p + 'wo_b')

    def publish(self, L, u, pos, ctx):
        """KV source: append the compressed entries and index keys of the groups completing in these rows."""
        c, R, p = self.c, self.c.ratio[L], f'layers.{L}.attn.'
        k = self.lin(u, p + 'compressor.wkv')
        g = self.lin(u, p + 'compressor.wgate') if R > 1 else np.zeros_like(k)
        k, g, j = ctx.groups(L, R, pos, k, g)                                      # [G,R,d]
        if self.off('pool_gate'):
            g = np.zeros_like(g)
        e = np.exp(g - g.max(1, keepdims=True)) if len(j) else g
        lat = self.rms(((e / e.sum(1, keepdims=True)) * k).sum(1), p + 'compressor.norm.weight')
        at = j * (1 if self.off('entry_pos') else R)
        ent = self.rope(lat, at, 'compress')
        key = self.rms(self.lin(ent if self.off('key_from_rotated') else lat, p + 'indexer.wk'), p + 'indexer.k_norm.weight')
        key = self.rope(key, at, 'compress')
        if self.qat:
            ent = ent if self.off('qat_entry') else fp4q_e4m3(ent, 16)
            key = key if self.off('qat_index') else fp4q_ue8m0(key, 32)
        ctx.put(L, ent, key)

    def select(self, L, u, qr, pos, ctx):
        """Indexer: bool mask [T, entries] of the chosen compressed entries."""
        c, p = self.c, f'layers.{L}.attn.indexer.'
        keys, lens = ctx.key[c.owner(L)], ((pos + 1) // c.ratio[L])[:, None]       # [N,di], [T,1]
        N = len(keys)
        if N == 0:
            return np.zeros((len(pos), 0), bool)
        q = self.rope(self.lin(qr, p + 'wq_b').reshape(len(u), c.index_n_heads, c.index_head_dim), pos, 'compress')
        if self.qat and not self.off('qat_index'):
            q = fp4q_ue8m0(q, 32)
        wt = self.lin(u, p + 'weights_proj') * self.dt(c.index_n_heads ** -.5)
        if self.off('index_weights'):
            wt = np.ones_like(wt)
        dots = q @ keys.T
        s = np.einsum('th,thn->tn', wt, dots if self.off('index_relu') else np.maximum(dots, 0)) * self.dt(c.index_head_dim ** -.5)
        s = np.where(np.arange(N) < lens, s, -np.inf)
        if L == c.candidate_source_layer_id:
            ctx.cand = self.candidates(s, lens)
        elif 0 <= c.candidate_source_layer_id < L and ctx.cand is not None and not self.off('candidate_mask'):
            s = np.where(ctx.cand, s, -np.inf)
        return self.topk_mask(s, c.index_topk, 'index')

    def candidates(self, s, lens):
        c, B = self.c, self.c.candidate_block_size
        nb = -(-s.shape[1] // B)
        pad = np.full((len(s), nb * B), -np.inf, s.dtype)
        pad[:, :s.shape[1]] = s
        b = pad.reshape(len(s), nb, B).max(-1)
        if not self.off('candidate_pin'):
            b = np.where(np.arange(nb) == (lens - 1) // B, np.inf, b)
        return np.repeat(self.topk_mask(b, c.candidate_topk_blocks, 'cand'), B, 1)[:, :s.shape[1]]

    def attention(self, L, u, pos, ctx):
        c, p = self.c, f'layers.{L}.attn.'
        kind = 'compress' if c.ratio[L] and not self.off('one_rope') else 'main'
        qr, q, kv = self.qkv(p, u, pos, kind)
        keys, kpos = ctx.window(L, pos, kv)
        mask = (kpos <= pos[:, None]) & (kpos > pos[:, None] - c.sliding_window)
        if c.ratio[L]:
            if L in c.ix_src:
                ctx.sel = self.select(L, u, qr, pos, ctx)
            if not self.off('compressed_branch'):
                keys = np.concatenate([keys, ctx.main[c.owner(L)]])
                mask = np.concatenate([mask, ctx.sel], 1)
        return self.out_proj(p, self.sink_attention(p, q, keys, mask), pos, kind)

    # ---------------------------------------------------------------- MoE (6.1)
    def expert(self, p, x, wt=None):
        lim = self.dt(1e9 if self.off('swiglu_clamp') else self.c.swiglu_limit)
        g = np.minimum(self.lin(x, p + 'w1'), lim)
        h = g * sigmoid(g) * np.clip(self.lin(x, p + 'w3'), -lim, lim)
        if wt is None:
            return self.lin(h, p + 'w2')
        return self.lin(h, p + 'w2') * wt if self.off('weight_after_w2') else self.lin(wt * h, p + 'w2')

    def moe(self, p, x, image, n_exp, k):
        """x [T,D], image [T] bool -> output [T,D], chosen ids [T,k] ascending."""
        c = self.c
        l = self.lin(x, p + 'gate')
        s = np.sqrt(np.where(l > 20, l, np.log1p(np.exp(np.minimum(l, 20)))))
        bias = np.where(image[:, None] & (not self.off('bias_vl')), self.w(p + 'gate.bias_vl'), self.w(p + 'gate.bias'))
        if self.off('gate_bias'):
            bias = 0 * bias
        m = self.topk_mask(s + bias, k, 'route')
        wt = np.where(m, s + bias if self.off('bias_in_weights') else s, 0)
        if c.norm_topk_prob and not self.off('norm_topk'):
            wt = wt / (wt.sum(-1, keepdims=True) + self.dt(1e-20))
        wt = wt * self.dt(1 if self.off('route_scale') else c.routed_scaling_factor)
        y = np.zeros_like(x)
        for e in range(n_exp):                          # ascending id
            r = np.nonzero(m[:, e])[0]
            if len(r):
                y[r] += self.expert(f'{p}experts.{e}.', x[r], wt[r, e:e + 1])
        if not self.off('shared_expert'):
            y = y + self.expert(p + 'shared_experts.', x)
        return y, np.nonzero(m)[1].reshape(len(x), k)

    # ---------------------------------------------------------------- engram (7)
    def hash_rows(self, hist, pos):
        """hist: compressed ids by absolute position (DEAD = image) -> table rows [layers][T, columns]."""
        e, G = self.eng, self.c.engram_max_ngram_size
        blocked, toks = np.zeros(len(pos), bool), []
        for s in range(G):
            src = np.where(pos >= s, hist[np.maximum(pos - s, 0)], DEAD)
            blocked = blocked | (src == DEAD)
            if self.off('hash_dead'):
                blocked = pos < s
                src = np.where(src == DEAD, 0, src)
            toks.append(np.where(blocked, e['pad'], src))
        out = []
        for mult, primes, offs in zip(e['multipliers'], e['primes'], e['offsets']):
            r, cols = toks[0] * I64(mult[0]), []
            for i in range(1, G):
                r = r ^ (toks[i] * I64(mult[i]))
                cols += [r % I64(q) for q in primes[i - 1]]
            out.append(np.stack(cols, -1) + np.array(offs, I64))
        return out

    def engram(self, L, x, rows, live):
        """x [T,4,D] += gate_i * value; gate from the normalized product of stream and key."""
        c, p, D = self.c, f'layers.{L}.engram.', self.c.hidden_size
        kv = self.lin(self.w(p + 'embed.weight')[rows].reshape(len(rows), -1), p + 'wkv')
        key, val = kv[:, :c.hc_mult * D].reshape(-1, c.hc_mult, D), kv[:, None, c.hc_mult * D:]
        eps = self.dt(c.eps)
        rstd = 1 / np.sqrt((x * x).mean(-1) + eps) / np.sqrt((key * key).mean(-1) + eps)
        dot = (x * (self.w(p + 'q_weight') * self.w(p + 'k_weight')) * key).sum(-1) * rstd * self.dt(D ** -.5)
        gate = sigmoid(dot if self.off('engram_sqrt') else np.copysign(np.sqrt(np.maximum(np.abs(dot), self.dt(1e-6))), dot))
        if self.off('engram_gate'):
            gate = np.ones_like(gate)
        if not self.off('engram_dead_gate'):
            gate = gate * live[:, None]
        return x + gate[..., None] * val

    # ---------------------------------------------------------------- forward
    def run(self, ctx, ids, start=0, images=None, keep=None, dump=None):
        """Rows start..start+len(ids)-1.  ctx is Whole or State.  images {position: embedding row}.
        keep = K switches decoder bounded replay on (6.3).  Returns logits/hbar of the rows that reached the end."""
        c, n = self.c, self.c.num_hidden_layers
        ids, T = np.asarray(ids, I64), len(ids)
        pos = start + np.arange(T)
        img = ids == c.image_token_id
        x = self.w('embed.weight')[ids]
        for i in np.nonzero(img)[0]:
            x[i] = images[int(pos[i])]
        x = np.repeat(x[:, None], c.hc_mult, 1)                                    # [T,4,D]
        pre = np.zeros((T, c.hc_mult), self.dt)
        pre[:, 0] = 1
        if self.off('pre_uniform'):
            pre[:] = 1 / c.hc_mult
        if self.eng:
            h = np.full(max(len(ctx.hist), start + T), DEAD, I64)
            h[:len(ctx.hist)] = ctx.hist
            h[pos] = np.where(img, DEAD, np.array(self.eng['token_map'], I64)[ids])
            ctx.hist = h
            rows = self.hash_rows(h, pos)
        hbar = []
        for L in range(n):
            p = f'layers.{L}.'
            if L in c.engram_layer_ids and not self.off('engram'):
                x = self.engram(L, x, rows[c.engram_layer_ids.index(L)], ~img)
            u = self.rms(self.collapse(x, pre), p + 'attn_norm.weight')
            if L in c.kv_src:
                self.publish(L, u, pos, ctx)
            if keep is not None and L == c.boundary and len(pos) > keep:           # only the suffix goes on
                x, pre, u, pos, img = x[-keep:], pre[-keep:], u[-keep:], pos[-keep:], img[-keep:]
                rows = [r[-keep:] for r in rows] if self.eng else None
                hbar = [h[-keep:] for h in hbar]
                if isinstance(ctx, State):
                    ctx.forget_decoder()
            if L in c.dspark_target_layer_ids:
                hbar.append(x[:, 0] if self.off('ctx_stream0') else x.mean(1))
            xin, pin = x, pre
            moe = lambda v: self.moe(p + 'ffn.', v, img, c.n_routed_experts, c.num_experts_per_tok)
            x, pre, y, z, eid = self.block(p, x, pre, u, lambda v: self.attention(L, v, pos, ctx), moe)
            if dump is not None:
                dump[f'L{L}.x_in'], dump[f'L{L}.pre_in'], dump[f'L{L}.x_out'] = xin, pin, x
                dump[f'L{L}.pre_out'], dump[f'L{L}.attn'], dump[f'L{L}.moe'], dump[f'L{L}.experts'] = pre, y, z, eid
                if L in c.kv_src:
                    dump[f'L{L}.entries'], dump[f'L{L}.index_keys'] = ctx.main[L], ctx.key[L]
                if L in c.ix_src:
                    dump[f'L{L}.selected'] = ctx.sel
                if L == c.candidate_source_layer_id:
                    dump[f'L{L}.candidates'] = ctx.cand
                if L in c.engram_layer_ids:
                    dump[f'L{L}.engram_rows'] = rows[c.engram_layer_ids.index(L)]
        f = self.rms(self.collapse(x, pre), 'norm.weight')
        if dump is not None:
            dump['final_norm'] = f
        return dict(logits=self.lin(f, 'head'), pos=pos, hbar=np.concatenate(hbar, -1) if hbar else None)

    # ---------------------------------------------------------------- state-based use
    def commit(self, st, out, count=None):
        """Accept the first `count` rows of the last run: truncate, then write their ctx rows to the draft rings."""
        count = len(out['pos']) if count is None else count
        pos = out['pos'][:count]
        st.truncate(int(pos[-1]) + 1)
        main = self.rms(self.lin(out['hbar'][:count], 'mtp.0.main_proj'), 'mtp.0.main_norm.weight')
        for S, (rows, at) in enumerate(st.dring):
            kv, last = self.window_row(f'mtp.{S}.attn.', main, pos, 'main'), slice(-len(rows), None)
            rows[pos[last] % len(rows)], at[pos[last] % len(rows)] = kv[last], pos[last]

    def prefill(self, ids, images=None, keep=None, chunks=None):
        st, at, out = State(self), 0, None
        for k in (chunks or [len(ids)]):
            out = self.run(st, ids[at:at + k], at, images, keep)
            self.commit(st, out)
            at += k
        return st, out

    def argmax(self, logits, kind='argmax'):
        v = np.sort(logits)[-2:]
        self.margin(kind, v[1:] - v[:1])
        return int(logits.argmax())

    def greedy(self, st, out, n):
        toks = [self.argmax(out['logits'][-1])]
        while len(toks) < n:
            if self.probe is not None:                  # generator: every draft block a later run can meet
                self.probe += self.draft(st, toks[-1])[1]
            out = self.run(st, toks[-1:], st.n)
            self.commit(st, out)
            toks.append(self.argmax(out['logits'][-1]))
        return toks

    # ---------------------------------------------------------------- DSpark (8)
    def draft(self, st, anchor):
        """One parallel block after position p = st.n-1 -> tokens, confidence logits, chosen logits rows."""
        c, B = self.c, self.c.dspark_block_size
        p, last = st.n - 1, c.num_nextn_predict_layers - 1
        ids = np.array([anchor] + [c.dspark_noise_token_id] * (B - 1), I64)
        pos, img = p + (0 if self.off('draft_position') else 1) + np.arange(B), ids == c.image_token_id
        x = np.repeat(self.w('embed.weight')[ids][:, None], c.hc_mult, 1)
        pre = np.zeros((B, c.hc_mult), self.dt)
        pre[:, 0] = 1

        def attend(S, u):
            a = f'mtp.{S}.attn.'
            _, q, kv = self.qkv(a, u, pos, 'main')
            if self.off('draft_block_qat'):
                kv = self.rope(self.rms(self.lin(u, a + 'wkv'), a + 'kv_norm.weight'), pos, 'main')
            rows, at = st.dring[S]
            ok = (at >= 0) & (at > p - c.sliding_window) & (at <= p) & (not self.off('draft_ctx'))
            order = np.argsort(at[ok])
            keys = np.concatenate([rows[ok][order], kv])
            mask = np.ones((B, len(keys)), bool)                                  # same set for every query
            if self.off('draft_bidirectional'):
                mask[:, -B:] = np.tril(np.ones((B, B), bool))
            return self.out_proj(a, self.sink_attention(a, q, keys, mask), pos, 'main')

        for S in range(last + 1):
            q = f'mtp.{S}.'
            u = self.rms(self.collapse(x, pre), q + 'attn_norm.weight')
            moe = lambda v: self.moe(q + 'ffn.', v, img, c.dspark_n_routed_experts, c.dspark_num_experts_per_tok)
            x, pre, *_ = self.block(q, x, pre, u, lambda v: attend(S, v), moe)
        hh, q = self.collapse(x, pre), f'mtp.{last}.'
        normed = self.rms(hh, q + 'norm.weight')
        base, toks, conf, tops = self.lin(normed, 'head'), [anchor], [], []
        for k in range(B):
            emb = self.w(q + 'markov_head.embed.weight')[toks[-1]]
            lg = base[k] + (0 if self.off('markov') else self.lin(emb, q + 'markov_head.head'))
            src = normed[k] if self.off('conf_prenorm') else hh[k]
            conf.append(float(self.lin(np.concatenate([src, emb]), q + 'confidence_head.proj')[0]))
            toks.append(self.argmax(lg, 'draft'))
            tops.append(float(lg.max()))
        return toks[1:], conf, tops

    def speculate(self, st, out, n):
        """Greedy draft-and-verify until n tokens; returns tokens and one record per step."""
        toks, steps = [self.argmax(out['logits'][-1])], []
        while len(toks) < n:
            d, conf, tops = self.draft(st, toks[-1])
            rec = dict(position=st.n, anchor=toks[-1], draft=d, confidence_logit=[round(v, 5) for v in conf],
                       draft_top_logit=[round(v, 5) for v in tops])
            self.track = False                          # rejected rows decide nothing; accepted ones are greedy's rows
            out = self.run(st, [toks[-1]] + d, st.n)
            self.track = True
            a, nxt = 0, self.argmax(out['logits'][0])
            while a < len(d) and d[a] == nxt:
                a += 1
                nxt = self.argmax(out['logits'][a])
            self.commit(st, out, a + 1)
            toks += d[:a] + [nxt]
            steps.append(dict(rec, accepted=a))
        return toks[:n], steps

    # ---------------------------------------------------------------- vision (9)
    def vit(self, patches, gh, gw):
        """patches [gh*gw, 3*p*p] -> [gh*gw, vision hidden]."""
        v, nh = self.c.vis, self.c.vis.num_attention_heads
        hd = v.hidden_size // nh
        bias = lambda y, n: y + self.w(n + '.bias')
        x = bias(self.lin(patches, 'vision.patch_embed.proj'), 'vision.patch_embed.proj')
        f = (float(v.rope_theta) ** (-np.arange(0, hd // 2, 2) / (hd // 2))).astype(F32)
        rr, cc = np.divmod(np.arange(gh * gw), gw)
        if self.off('vision_rope_swap'):
            rr, cc = cc, rr
        ang = np.concatenate([rr[:, None].astype(F32) * f, cc[:, None].astype(F32) * f], -1).astype(F64)[:, None]
        co, si = np.cos(ang).astype(self.dt), np.sin(ang).astype(self.dt)

        def rot(t):                                     # half split, not interleaved
            a, b = t[..., :hd // 2], t[..., hd // 2:]
            return np.concatenate([a * co - b * si, b * co + a * si], -1)

        for i in range(v.num_hidden_layers):
            p = f'vision.blocks.{i}.'
            y = bias(self.lin(self.rms(x, p + 'norm1.weight', 1e-6), p + 'attn.wqkv'), p + 'attn.wqkv')
            q, k, val = (t.reshape(-1, nh, hd) for t in np.split(y, 3, -1))
            if not self.off('vision_rope'):
                q, k = rot(q), rot(k)
            s = np.einsum('qhd,khd->hqk', q, k) * self.dt(hd ** -.5)
            e = np.exp(s - s.max(-1, keepdims=True))
            o = np.einsum('hqk,khd->qhd', e / e.sum(-1, keepdims=True), val).reshape(len(x), -1)
            x = x + bias(self.lin(o, p + 'attn.wo'), p + 'attn.wo')
            g, up = np.split(self.lin(self.rms(x, p + 'norm2.weight', 1e-6), p + 'mlp.w1'), 2, -1)
            x = x + self.lin(g * sigmoid(g) * up, p + 'mlp.w2')
        return self.rms(x, 'vision.norm.weight', 1e-6)

    def align(self, x, gh, gw):
        """3x3 unfold, channel-major features c*9+dy*3+dx, zero padding right/bottom -> rows of the text width."""
        r = self.c.vis.downsample_ratio
        H, W = -(-gh // r), -(-gw // r)
        g = np.zeros((H * r, W * r, x.shape[1]), self.dt)
        g[:gh, :gw] = x.reshape(gh, gw, -1)
        order = (0, 2, 1, 3, 4) if self.off('aligner_order') else (0, 2, 4, 1, 3)
        g = g.reshape(H, r, W, r, -1).transpose(order).reshape(H * W, -1)
        h = self.lin(g, 'aligner.w1') + self.w('aligner.w1.bias')
        h = h * .5 * (1 + erf(h * 2 ** -.5)).astype(self.dt)
        return self.lin(h, 'aligner.w2') + self.w('aligner.w2.bias')

    def image_span(self, pixels):
        """pixels uint8 [h,w,3], already of the planned size -> span embeddings [h_llm*(w_llm+1)+2, D], (h_llm, w_llm)."""
        ps, r = self.c.vis.patch_size, self.c.vis.downsample_ratio
        gh, gw = pixels.shape[0] // ps, pixels.shape[1] // ps
        a = ((pixels.astype(F32) / F32(255) - F32(.5)) / F32(.5)).astype(self.dt)
        a = a.reshape(gh, ps, gw, ps, 3).transpose(0, 2, 4, 1, 3).reshape(gh * gw, -1)    # (c, py, px) per patch
        rows = self.align(self.vit(a, gh, gw), gh, gw)
        H, W = -(-gh // r), -(-gw // r)
        one = lambda n: self.w(n).reshape(1, -1)
        parts = [one('image_start')]
        for i in range(H):
            parts += [rows[i * W:(i + 1) * W], one('image_newline') * (0 if self.off('image_newline') else 1)]
        return np.concatenate(parts + [one('image_end')]), (H, W)


def erf(x):
    return np.vectorize(math.erf, otypes=[F64])(x)


def plan_image(w, h, v):
    """Resize plan (9): (llm rows, llm cols, best_h, best_w); v has patch_size, downsample_ratio, min_pixels, ..."""
    ps, r, cap = v.patch_size, v.downsample_ratio, v.max_image_tokens
    grid = lambda bh, bw: (-(-(bh // ps) // r), -(-(bw // ps) // r))
    cost = lambda g: g[0] * (g[1] + 1) + 2
    mx = getattr(v, 'max_wh_ratio', None)
    if mx is not None and w > h * mx:
        w = h * mx
    if w * h < v.min_pixels:
        k = (v.min_pixels / (w * h)) ** .5
        w, h = int(w * k), int(h * k)
    bw, bh = math.ceil(w / ps) * ps, math.ceil(h / ps) * ps
    if cost(grid(bh, bw)) > cap:
        k, cell = h / w, ps * r
        mw = math.sqrt((cap - 2) / k + .25) - .5
        mh = mw * k
        if mw < 1:
            bh, bw = (cap - 2) // 2 * cell, cell
        elif mh < 1:
            bh, bw = cell, (cap - 3) * cell
        else:
            beta = min(math.floor(mw) * cell / w, math.floor(mh) * cell / h)
            bh, bw = math.floor(h * beta / ps) * ps, math.floor(w * beta / ps) * ps
        if cost(grid(bh, bw)) > cap or not bh or not bw:
            raise ValueError('image cannot fit')
    return (*grid(bh, bw), bh, bw)


def fit_inside(w, h, bw, bh):
    """Aspect-preserving size inside the box and the left/top padding (round half to even, as Python's round)."""
    if w / h > bw / bh:
        fw, fh = bw, round(h / w * bw)
    elif w / h < bw / bh:
        fw, fh = round(w / h * bh), bh
    else:
        fw, fh = bw, bh
    return fw, fh, round((bw - fw) * .5), round((bh - fh) * .5)
