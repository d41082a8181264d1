"""DeepSeek-V4.1 in PyTorch for training: whole sequences, dense masks, every quantizer of the
released format as a straight-through function.  Parameters of one kind are stacked over layers,
so that quantizing and optimizing them takes one operation each."""

import math

import torch
from torch import nn

import ops
from quant import weight_fp4, weight_fp8


class Parameters(nn.Module):
    """Master weights in float32.  Kinds: fp4 and fp8 are stored quantized, the rest as bf16 or f32
    (the hyper-connection projections are rounded to bf16 and stored as f32)."""

    FP4 = ('w1', 'w2', 'w3', 'dw1', 'dw2', 'dw3')
    FP8 = ('s1', 's2', 's3', 'wq_a', 'wq_b', 'wkv', 'wo_a', 'wo_b', 'iwq_b', 'ewkv', 'main_proj')
    F32 = ('base', 'scale', 'sink')

    def __init__(self, c, engram_rows, seed=0):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        D, d, I, ql = c.hidden_size, c.head_dim, c.moe_intermediate_size, c.q_lora_rank
        L, M, V, H = c.layers, c.drafts, c.vocab_size, c.num_attention_heads
        N, E, Ed = L + M, c.n_routed_experts, c.dspark_n_routed_experts
        S, X = len(c.kv_source_layer_ids), len(c.index_source_layer_ids)
        pooled = sum(c.ratio[i] > 1 for i in c.kv_source_layer_ids)
        cols = (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim
        G, di, r = len(c.engram_layer_ids), c.index_head_dim, c.dspark_markov_rank

        def fan(*shape, gain=1.0):
            w = torch.randn(shape, generator=g) * (gain / math.sqrt(shape[-1]))
            return nn.Parameter(w)

        def flat(*shape, value=1.0, spread=0.0):
            return nn.Parameter(torch.full(shape, value) + spread * torch.randn(shape, generator=g))

        self.embed, self.head = flat(V, D, value=0.0, spread=0.5), fan(V, D, gain=0.3)
        self.norm = flat(D)
        self.attn_norm, self.ffn_norm = flat(N, D), flat(N, D)
        self.fn = fan(2, N, 24, 4 * D)
        # Streams start as an average that stays apart: identity-like mixing, unequal writing.
        base = 0.3 * torch.randn(2, N, 24, generator=g)
        base[..., :4] -= 1.1
        base[..., 8:] += 3.0 * torch.eye(4).flatten()
        self.base, self.scale = nn.Parameter(base), flat(2, N, 3, value=0.1)
        self.wq_a, self.q_norm, self.wq_b = fan(N, ql, D), flat(N, ql), fan(N, H * d, ql)
        self.wkv, self.kv_norm = fan(N, d, D), flat(N, d)
        self.wo_a = fan(N, c.o_groups * c.o_lora_rank, H * d // c.o_groups)
        self.wo_b = fan(N, D, c.o_groups * c.o_lora_rank, gain=0.5)
        self.sink = flat(N, H, value=0.0)
        self.gate, self.dgate = fan(L, E, D), fan(M, Ed, D)
        self.w1, self.w3, self.w2 = fan(L, E, I, D), fan(L, E, I, D), fan(L, E, D, I, gain=0.5)
        self.dw1, self.dw3, self.dw2 = (
            fan(M, Ed, I, D),
            fan(M, Ed, I, D),
            fan(M, Ed, D, I, gain=0.5),
        )
        self.s1, self.s3, self.s2 = fan(N, I, D), fan(N, I, D), fan(N, D, I, gain=0.5)
        self.cwkv, self.cnorm = fan(S, d, D), flat(S, d)
        self.cwgate = fan(pooled, d, D, gain=0.5)
        self.iwk, self.ik_norm = fan(S, di, d), flat(S, di)
        self.iwq_b, self.iwp = fan(X, c.index_n_heads * di, ql), fan(X, c.index_n_heads, D)
        self.tables = nn.ParameterList(
            flat(n, c.engram_head_dim, value=0.0, spread=0.5) for n in engram_rows
        )
        self.ewkv = fan(G, 5 * D, cols, gain=0.3)
        self.eq, self.ek = flat(G, 4, D), flat(G, 4, D)
        self.main_proj, self.main_norm, self.dnorm = fan(D, 3 * D), flat(D), flat(D)
        self.membed, self.mhead = flat(V, r, value=0.0, spread=0.5), fan(V, r, gain=0.3)
        self.conf = nn.Parameter(torch.zeros(1, D + r))
        self.register_buffer('bias', torch.zeros(L, E))
        self.register_buffer('dbias', torch.zeros(M, Ed))


@ops.compiled
def prepare(p, tables, mix, dtype):
    """Quantized and cast weights by name; expert matrices joined with the shared expert last."""
    q = {}
    for name, w in p.items():
        if name in Parameters.FP4:
            q[name] = weight_fp4(w, mix, dtype)
        elif name in Parameters.FP8:
            q[name] = weight_fp8(w, mix, dtype)
        elif name in Parameters.F32 or name == 'embed' or name == 'membed':
            q[name] = (
                (w + mix * (w.detach().bfloat16().float() - w.detach())) if 'embed' in name else w
            )
        else:
            q[name] = (w + mix * (w.detach().bfloat16().float() - w.detach())).to(dtype)
    L = q['w1'].shape[0]
    for new, routed, shared in (('u1', ('w1', 'dw1'), 's1'), ('u3', ('w3', 'dw3'), 's3')):
        for part, name, s in (('', routed[0], q[shared][:L]), ('d', routed[1], q[shared][L:])):
            q[part + new] = torch.cat([q[name], s[:, None]], 1).flatten(1, 2)
    for part, name, s in (('', 'w2', q['s2'][:L]), ('d', 'dw2', q['s2'][L:])):
        q[part + 'u2'] = torch.cat([q[name], s[:, None]], 1).transpose(1, 2).flatten(2)
    return q, [weight_fp8(t, mix, torch.float32, rows=1) for t in tables]


class Model(nn.Module):
    def __init__(self, c, engram_rows, dtype=torch.bfloat16, seed=0):
        super().__init__()
        self.c, self.dtype, self.p = c, dtype, Parameters(c, engram_rows, seed)
        self._tables = {}

    def weights(self, mix):
        """Call once per step; mix is a 0-dim tensor, 1 = as exported."""
        p = {n: w for n, w in self.p.named_parameters() if not n.startswith('tables.')}
        q, tables = prepare(p, list(self.p.tables), mix, self.dtype)
        w = {n: (t.unbind(0) if t.dim() > 1 and n not in WHOLE else t) for n, t in q.items()}
        w['fn'], w['base'], w['scale'] = (
            [s.unbind(0) for s in w[n]] for n in ('fn', 'base', 'scale')
        )
        w['tables'] = tables
        return w

    # -------------------------------------------------------- tables that depend on T only
    def rope_table(self, kind, positions):
        """cos and sin [.., r/2] in float32 from float32 angles."""
        c, r = self.c, self.c.qk_rope_head_dim
        base = c.rope_theta if kind == 'main' else c.compress_rope_theta
        f = float(base) ** (-torch.arange(0, r, 2, dtype=torch.float64) / r)
        if kind == 'compress':
            sc = c.rope_scaling
            at = (
                lambda b: r
                * math.log(sc['original_max_position_embeddings'] / (b * 2 * math.pi))
                / (2 * math.log(base))
            )
            lo = max(math.floor(at(sc['beta_fast'])), 0)
            hi = min(math.ceil(at(sc['beta_slow'])), r - 1)
            ramp = ((torch.arange(r // 2) - lo) / max(hi - lo, 0.001)).clamp(0, 1)
            f = f / sc['factor'] * ramp + f * (1 - ramp)
        angle = (positions.cpu().float()[..., None] * f.float()).double()
        return angle.cos().float().to(positions.device), angle.sin().float().to(positions.device)

    def constants(self, T, device):
        if (T, device) not in self._tables:
            c, W = self.c, self.c.sliding_window
            i, j = torch.arange(T, device=device)[:, None], torch.arange(2 * W, device=device)
            key = (i // W - 1) * W + j
            near = torch.where((key >= 0) & (key <= i) & (key > i - W), 0.0, ops.FAR)
            k = dict(near=near, main=self.rope_table('main', torch.arange(T, device=device)))
            for R in sorted(set(c.ratio) - {0}):
                at = torch.arange(0, T - R + 1, R, device=device)
                k['seen', R] = torch.arange(T // R, device=device) < (i + 1) // R
                k['entry', R] = self.rope_table('compress', at)
                k['last', R] = (i + 1) // R - 1
            k['compress'] = self.rope_table('compress', torch.arange(T, device=device))
            # Draft blocks reach past the sequence.
            k['ahead'] = self.rope_table('main', torch.arange(T + 8, device=device))
            self._tables[T, device] = k
        return self._tables[T, device]

    # -------------------------------------------------------- backbone
    def select(self, layer, scores, state, k, exact):
        c, R = self.c, self.c.ratio[layer]
        top = ops.top_exact if exact else ops.top_threshold
        s = torch.where(k['seen', R], scores.detach(), ops.FAR)
        if layer == c.candidate_source_layer_id:
            n = c.candidate_block_size
            blocks = torch.nn.functional.pad(s, (0, -s.shape[-1] % n), value=ops.FAR)
            blocks = blocks.unflatten(-1, (-1, n)).amax(-1)
            own = torch.arange(blocks.shape[-1], device=s.device) == k['last', R] // n
            blocks = torch.where(
                own & (k['last', R] >= 0), 1e20 if exact else blocks.amax(-1, keepdim=True), blocks
            )
            pool = top(blocks, c.candidate_topk_blocks)
            state['pool'] = pool.repeat_interleave(n, -1)[..., : s.shape[-1]]
        elif layer > c.candidate_source_layer_id and 'pool' in state:
            s = torch.where(state['pool'], s, ops.FAR)
        return top(s, c.index_topk)

    def attention(self, layer, u, w, state, k, exact):
        c, R = self.c, self.c.ratio[layer]
        cos, sin = k['compress' if R else 'main']
        qr, q, kv = ops.qkv(
            u,
            w['wq_a'][layer],
            w['q_norm'][layer],
            w['wq_b'][layer],
            w['wkv'][layer],
            w['kv_norm'][layer],
            cos,
            sin,
            c.num_attention_heads,
        )
        sink, W = w['sink'][layer], c.sliding_window
        if R == 0:
            o = ops.attend_window(q, kv, sink, k['near'], W)
        else:
            if layer in c.kv_source_layer_ids:
                i = c.kv_source_layer_ids.index(layer)
                gate = (
                    w['cwgate'][sum(c.ratio[s] > 1 for s in c.kv_source_layer_ids[:i])]
                    if R > 1
                    else None
                )
                state['main'], state['key'] = ops.publish(
                    u[:, : u.shape[1] // R * R],
                    w['cwkv'][i],
                    gate,
                    w['cnorm'][i],
                    w['iwk'][i],
                    w['ik_norm'][i],
                    *k['entry', R]
                )
            chooses = layer in c.index_source_layer_ids
            if chooses:
                i = c.index_source_layer_ids.index(layer)
                scores = ops.index_scores(
                    u, qr, state['key'], w['iwq_b'][i], w['iwp'][i], cos, sin, c.index_n_heads
                )
                chosen = self.select(layer, scores, state, k, exact)
                state['allow'] = torch.where(
                    k['seen', R], torch.where(chosen, 0.0, state['far']), ops.FAR
                ).to(self.dtype)
            o, target = ops.attend_both(
                q, kv, state['main'], state['allow'], sink, k['near'], W, chooses and not exact
            )
            if target is not None:
                state['index_loss'] += ops.index_loss(scores, k['seen', R], target)
        return ops.out_proj(o, cos, sin, w['wo_a'][layer], w['wo_b'][layer], c.o_groups)

    def forward(self, ids, rows, w, far, exact=False):
        """ids [B,T], rows: Engram rows per Engram layer, far: 0-dim bias of entries that were not
        chosen (0 = attend to all).  T is a multiple of the window."""
        c, (B, T) = self.c, ids.shape
        k = self.constants(T, ids.device)
        x = ops.gather(w['embed'], ids).to(self.dtype).reshape(B * T, 1, -1)
        x = x.expand(-1, 4, -1).contiguous()
        pre = torch.zeros(B * T, 4, device=ids.device)
        pre[:, 0] = 1
        state, taps, counts, u = dict(far=far, index_loss=0.0), [], [], None
        for layer in range(c.layers):
            if layer in c.engram_layer_ids:
                i = c.engram_layer_ids.index(layer)
                e = ops.gather(w['tables'][i], rows[i]).reshape(B * T, -1)
                x, u = ops.engram(x, e, w['ewkv'][i], w['eq'][i], w['ek'][i]), None
            if u is None:
                u = ops.site_in(x, pre, w['attn_norm'][layer])
            if layer in c.dspark_target_layer_ids:
                taps.append(ops.stream_mean(x.detach()))
            follow = layer + 1 < c.layers and layer + 1 not in c.engram_layer_ids
            x, pre, u, n = self.block(
                layer,
                x,
                pre,
                u,
                lambda v: self.attention(layer, v.view(B, T, -1), w, state, k, exact),
                w,
                w['attn_norm'][layer + 1] if follow else None,
            )
            counts.append(n)
        h = ops.head_in(x, pre, w['norm'])[1]
        return dict(
            h=h,
            taps=torch.cat(taps, -1).view(B, T, -1),
            counts=torch.stack(counts),
            index_loss=state['index_loss'],
        )

    def block(self, i, x, pre, u, attend, w, next_norm):
        """One layer after its first collapse.  Layers past the backbone are draft layers."""
        c, L = self.c, self.c.layers
        hc = lambda site: ops.mixes(
            x,
            w['fn'][site][i],
            w['base'][site][i],
            w['scale'][site][i],
            c.hc_eps,
            c.hc_sinkhorn_iters,
        )
        a_pre, a_post, a_comb = hc(0)
        y = attend(u)
        x, v = ops.expand_in(y, x, a_post, a_comb, a_pre, w['ffn_norm'][i])
        f_pre, f_post, f_comb = hc(1)
        d, j = ('d', i - L) if i >= L else ('', i)
        z, n = ops.moe(
            v,
            w[d + 'gate'][j],
            getattr(self.p, d + 'bias')[j],
            w[d + 'u1'][j],
            w[d + 'u3'][j],
            w[d + 'u2'][j],
            c.dspark_num_experts_per_tok if d else c.num_experts_per_tok,
            c.moe_intermediate_size,
            c.swiglu_limit,
            c.routed_scaling_factor,
        )
        if next_norm is None:
            return ops.expand(z, x, f_post, f_comb), f_pre, None, n
        x, u = ops.expand_in(z, x, f_post, f_comb, f_pre, next_norm)
        return x, f_pre, u, n

    # -------------------------------------------------------- draft layers
    def draft(self, ids, taps, at, w):
        """Draft blocks after positions at [B,A] (token at+1 is the anchor).  Returns collapsed
        streams, their norm (both [B*A*K, D]) and rows per expert."""
        c, (B, A), K, L = self.c, at.shape, self.c.dspark_block_size, self.c.layers
        k, T = self.constants(ids.shape[1], ids.device), ids.shape[1]
        ctx = rms_linear(taps, w['main_proj'], w['main_norm'])
        t = torch.arange(T, device=ids.device)
        allow = torch.where(
            (t <= at[..., None]) & (t > at[..., None] - c.sliding_window), 0.0, ops.FAR
        ).to(self.dtype)
        block = torch.full((B, A, K), c.dspark_noise_token_id, device=ids.device)
        block[..., 0] = torch.gather(ids, 1, at + 1)
        # The backbone owns the embedding; only the row of the noise token learns here.
        table = w['embed'].detach()
        noise = (block == c.dspark_noise_token_id).float()[..., None]
        learned = w['embed'][c.dspark_noise_token_id]
        x = table[block] + noise * (learned - learned.detach())
        x = x.to(self.dtype).reshape(B * A * K, 1, -1).expand(-1, 4, -1).contiguous()
        pre = torch.zeros(B * A * K, 4, device=ids.device)
        pre[:, 0] = 1
        place = (at[..., None] + 1 + torch.arange(K, device=ids.device)).flatten(1)
        cos, sin = (v[place] for v in k['ahead'])
        counts, u = [], ops.site_in(x, pre, w['attn_norm'][L])
        for S in range(c.drafts):
            i = L + S
            rows = ops.kv_row(ctx, w['wkv'][i], w['kv_norm'][i], *k['main'])

            def attend(u):
                _, q, kv = ops.qkv(
                    u.view(B, A * K, -1),
                    w['wq_a'][i],
                    w['q_norm'][i],
                    w['wq_b'][i],
                    w['wkv'][i],
                    w['kv_norm'][i],
                    cos,
                    sin,
                    c.num_attention_heads,
                )
                o = ops.attend_draft(
                    q.unflatten(1, (A, K)), rows, allow, kv.unflatten(1, (A, K)), w['sink'][i]
                )
                return ops.out_proj(o, cos, sin, w['wo_a'][i], w['wo_b'][i], c.o_groups)

            x, pre, u, n = self.block(
                i, x, pre, u, attend, w, w['attn_norm'][i + 1] if S + 1 < c.drafts else None
            )
            counts.append(n)
        collapsed, normed = ops.head_in(x, pre, w['dnorm'])
        return collapsed, normed, torch.stack(counts)


# Weights that are one matrix or vector, not a stack over layers.
WHOLE = ('embed', 'head', 'norm', 'main_proj', 'main_norm', 'dnorm', 'membed', 'mhead', 'conf')


@ops.compiled
def rms_linear(x, w, norm):
    return ops.rms(x @ w.T, norm).to(x.dtype)
