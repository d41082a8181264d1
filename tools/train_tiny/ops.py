"""The tensor functions of the model.  Each is compiled on its own (see `compiled`): layers share
them, so a model of any depth compiles a dozen small graphs.  Rows are flattened tokens [R, ...];
streams x are [R, 4, D], pre and post [R, 4], the combination matrix [R, 16]."""

import contextlib

import torch
import torch.nn.functional as F

from quant import fp4q_e4m3, fp4q_ue8m0, fp8q

FAR = -1e30  # score of a key that must not be seen
_compile, _functions = [False], {}


def enable_compile(backend):
    torch._dynamo.config.recompile_limit = 64
    _compile[0] = backend


@contextlib.contextmanager
def eager():
    """Runs the functions as they are: only the shapes of training are worth compiling."""
    before, _compile[0] = _compile[0], False
    yield
    _compile[0] = before


def compiled(fn):
    def call(*args, **kw):
        if not _compile[0]:
            return fn(*args, **kw)
        if fn not in _functions:
            _functions[fn] = torch.compile(fn, dynamic=False, backend=_compile[0])
        return _functions[fn](*args, **kw)

    return call


class _Gather(torch.autograd.Function):
    """Rows of a float32 table; the gradient is added by index without a device sync."""

    @staticmethod
    def forward(ctx, table, ids):
        ctx.save_for_backward(ids)
        ctx.rows = table.shape[0]
        return table[ids]

    @staticmethod
    def backward(ctx, grad):
        (ids,) = ctx.saved_tensors
        out = torch.zeros(ctx.rows, grad.shape[-1], device=grad.device)
        out.index_add_(0, ids.flatten(), grad.reshape(-1, grad.shape[-1]).float())
        return out, None


gather = _Gather.apply


def rms(x, w, eps=1e-20):
    x = x.float()
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w


def rope(x, cos, sin):
    """Rotate the interleaved pairs of the last channels, float32."""
    r = 2 * cos.shape[-1]
    x = x.float()
    a, b = x[..., -r:].unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([x[..., :-r], turned], -1) if x.shape[-1] > r else turned


# ------------------------------------------------------------ hyper-connections
def _collapse(x, pre):
    return (pre[:, :, None] * x.float()).sum(1)


@compiled
def site_in(x, pre, norm):
    return rms(_collapse(x, pre), norm).to(x.dtype)


@compiled
def mixes(x, fn, base, scale, hc_eps, iters):
    f = x.flatten(1)
    m = (f @ fn.T).float() * torch.rsqrt(f.float().square().mean(-1, keepdim=True) + 1e-20)
    z = m * torch.cat([scale[0].expand(4), scale[1].expand(4), scale[2].expand(16)]) + base
    pre, post = torch.sigmoid(z[:, :4]) + hc_eps, 2 * torch.sigmoid(z[:, 4:8])
    flat = z[:, 8:].unbind(-1)  # scalars per row, so that one kernel does it all
    c = [[flat[4 * j + k] for k in range(4)] for j in range(4)]
    for j in range(4):
        top = torch.maximum(torch.maximum(c[j][0], c[j][1]), torch.maximum(c[j][2], c[j][3]))
        e = [torch.exp(v - top.detach()) for v in c[j]]
        s = 1 / (e[0] + e[1] + e[2] + e[3])
        c[j] = [v * s + hc_eps for v in e]

    def columns(c):
        s = [1 / (c[0][k] + c[1][k] + c[2][k] + c[3][k] + hc_eps) for k in range(4)]
        return [[c[j][k] * s[k] for k in range(4)] for j in range(4)]

    def rows(c):
        s = [1 / (c[j][0] + c[j][1] + c[j][2] + c[j][3] + hc_eps) for j in range(4)]
        return [[c[j][k] * s[j] for k in range(4)] for j in range(4)]

    c = columns(c)
    for _ in range(iters - 1):
        c = columns(rows(c))
    return pre, post, torch.stack([v for row in c for v in row], -1)


def _expand(y, x, post, comb):
    """out_k = post_k y + sum_j C[j,k] x_j"""
    mixed = (comb.unflatten(-1, (4, 4))[..., None] * x.float()[:, :, None]).sum(1)
    return (post[:, :, None] * y.float()[:, None] + mixed).to(x.dtype)


@compiled
def expand(y, x, post, comb):
    return _expand(y, x, post, comb)


@compiled
def expand_in(y, x, post, comb, pre, norm):
    """expand, then the collapse and norm of the next site."""
    x = _expand(y, x, post, comb)
    return x, rms(_collapse(x, pre), norm).to(x.dtype)


@compiled
def head_in(x, pre, norm):
    """Collapsed stream (float32) and its norm."""
    h = _collapse(x, pre)
    return h, rms(h, norm).to(x.dtype)


@compiled
def stream_mean(x):
    return x.float().mean(1).to(x.dtype)


# ------------------------------------------------------------ attention
def _kv_row(u, wkv, kv_norm, cos, sin):
    return fp8q(rope(rms(u @ wkv.T, kv_norm), cos, sin)).to(u.dtype)


@compiled
def kv_row(u, wkv, kv_norm, cos, sin):
    return _kv_row(u, wkv, kv_norm, cos, sin)


@compiled
def qkv(u, wq_a, q_norm, wq_b, wkv, kv_norm, cos, sin, heads):
    """u [B,T,D], cos [.., T, r/2] -> latent, q [B,T,H,d] rotated, window row [B,T,d]."""
    qr = rms(u @ wq_a.T, q_norm).to(u.dtype)
    q = (qr @ wq_b.T).unflatten(-1, (heads, -1))
    q = rope(q, cos[..., None, :], sin[..., None, :]).to(u.dtype)
    return qr, q, _kv_row(u, wkv, kv_norm, cos, sin)


@compiled
def out_proj(o, cos, sin, wo_a, wo_b, groups):
    """o [B,T,H,d] -> [B*T, D]: inverse rotation, grouped low-rank projection."""
    o = rope(o, cos[..., None, :], -sin[..., None, :]).to(o.dtype)
    o = o.reshape(-1, groups, o.shape[-2] * o.shape[-1] // groups)
    z = torch.stack([o[:, g] @ w.T for g, w in enumerate(wo_a.unflatten(0, (groups, -1)))], 1)
    return z.flatten(1) @ wo_b.T


def _window_keys(kv, width):
    """Keys of each block of `width` queries: the block before and the block itself."""
    before = F.pad(kv, (0, 0, width, 0))[:, : kv.shape[1]]
    pair = [t.unflatten(1, (-1, width)) for t in (before, kv)]
    return torch.cat(pair, 2).flatten(0, 1)


def _sink_softmax(parts, sink):
    """Scores of several key sets [..., S_i] with one sink per head in the denominator."""
    top = sink
    for s in parts:
        top = torch.maximum(top, s.amax(-1, keepdim=True))
    top = top.detach()
    e = [torch.exp(s - top) for s in parts]
    total = torch.exp(sink - top)
    for v in e:
        total = total + v.sum(-1, keepdim=True)
    return [v / total for v in e]


@compiled
def attend_window(q, kv, sink, near, width):
    """q [B,T,H,d]; near [T, 2*width] float bias."""
    B, T, H, d = q.shape
    keys = _window_keys(kv, width)
    s = (q.reshape(-1, width * H, d) @ keys.mT).view(B, T, H, -1).float() * d**-0.5
    (p,) = _sink_softmax([s + near[:, None]], sink[:, None])
    return (p.to(q.dtype).reshape(-1, width * H, 2 * width) @ keys).view(B, T, H, d)


@compiled
def attend_both(q, kv, entries, allow, sink, near, width, want):
    """Window and compressed entries; also the attention on entries summed over heads if wanted."""
    B, T, H, d = q.shape
    keys = _window_keys(kv, width)
    sw = (q.reshape(-1, width * H, d) @ keys.mT).view(B, T, H, -1).float() * d**-0.5
    se = (q.reshape(B, T * H, d) @ entries.mT).view(B, T, H, -1).float() * d**-0.5
    parts = [sw + near[:, None], se + allow[:, :, None].float()]
    pw, pe = _sink_softmax(parts, sink[:, None])
    o = (pw.to(q.dtype).reshape(-1, width * H, 2 * width) @ keys).view(B, T, H, d)
    o = o + (pe.to(q.dtype).reshape(B, T * H, -1) @ entries).view(B, T, H, d)
    return o, pe.detach().sum(2).to(q.dtype) if want else None


@compiled
def attend_draft(q, ctx, allow, block, sink):
    """q [B,A,K,H,d] over context rows [B,T,d] (allow [B,A,T]) and the block's rows [B,A,K,d]."""
    B, A, K, H, d = q.shape
    sc = (q.reshape(B, -1, d) @ ctx.mT).view(B, A, K, H, -1).float() * d**-0.5
    sb = (q.reshape(B * A, K * H, d) @ block.flatten(0, 1).mT).view(B, A, K, H, K).float() * d**-0.5
    pc, pb = _sink_softmax([sc + allow[:, :, None, None].float(), sb], sink[:, None])
    o = (pc.to(q.dtype).reshape(B, -1, pc.shape[-1]) @ ctx).view(B, A, K, H, d)
    o = o + (pb.to(q.dtype).reshape(B * A, K * H, K) @ block.flatten(0, 1)).view(B, A, K, H, d)
    return o.flatten(1, 2)


@compiled
def publish(u, wkv, wgate, norm, wk, k_norm, cos, sin):
    """Compressed entries and index keys of a KV source; wgate None means ratio 1."""
    k = (u @ wkv.T).float()
    if wgate is not None:
        g = (u @ wgate.T).float().unflatten(1, (-1, 2))
        k = (torch.softmax(g, 2) * k.unflatten(1, (-1, 2))).sum(2)
    latent = rms(k, norm)
    entries = fp4q_e4m3(rope(latent, cos, sin)).to(u.dtype)
    # The indexer learns from its own loss alone.
    key = rms(latent.detach().to(u.dtype) @ wk.T, k_norm)
    return entries, fp4q_ue8m0(rope(key, cos, sin)).to(u.dtype)


@compiled
def index_scores(u, qr, keys, wq_b, wp, cos, sin, heads):
    """[B,T,N] float32 scores before any mask."""
    u, qr = u.detach(), qr.detach()
    q = (qr @ wq_b.T).unflatten(-1, (heads, -1))
    q = fp4q_ue8m0(rope(q, cos[..., None, :], sin[..., None, :])).to(u.dtype)
    B, T, H, d = q.shape
    dots = (q.reshape(B, T * H, d) @ keys.mT).view(B, T, H, -1).float()
    w = (u @ wp.T).float() * (H**-0.5 * d**-0.5)
    return (torch.relu(dots) * w[..., None]).sum(2)


@compiled
def index_loss(scores, visible, target):
    """Cross entropy of the indexer against the attention it should predict, less its entropy."""
    t = target.float()
    t = t / t.sum(-1, keepdim=True).clamp_min(1e-3)
    logq = torch.log_softmax(torch.where(visible, scores, FAR), -1)
    return (t * (torch.log(t.clamp_min(1e-9)) - logq)).sum(-1).mean()


@compiled
def top_threshold(scores, count):
    """Mask of about the `count` best of each row, by bisection on the value: at least `count`
    are kept (all, if fewer are finite)."""
    seen = scores > FAR / 2
    high = scores.amax(-1, keepdim=True)
    low = torch.where(seen, scores, 1e30).amin(-1, keepdim=True).clamp_max(1e29)
    high = torch.maximum(high, low)
    for _ in range(18):
        mid = (low + high) * 0.5
        enough = (scores >= mid).sum(-1, keepdim=True) >= count
        low, high = torch.where(enough, mid, low), torch.where(enough, high, mid)
    return (scores >= low) & seen


def top_exact(scores, count):
    """Exactly the `count` best, the lower index first among equals."""
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :count]
    mask = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, True)
    return mask & (scores > FAR / 2)


# ------------------------------------------------------------ experts and Engram
@compiled
def moe(u, gate, bias, w1, w3, w2, top_k, inter, limit, route_scale):
    """All experts are computed and weighted; the last one is the shared expert.  Few small experts
    make that cheaper than gathering rows.  Returns output and rows per expert."""
    s = torch.sqrt(F.softplus(u.float() @ gate.float().T))
    v = s.detach() + bias
    n = torch.arange(v.shape[-1], device=v.device)
    a, b = v[:, None, :], v[:, :, None]
    rank = ((a > b) | ((a == b) & (n < n[:, None]))).sum(-1)
    chosen = rank < top_k
    w = torch.where(chosen, s, 0.0)
    w = w / (w.sum(-1, keepdim=True) + 1e-20) * route_scale
    w = torch.cat([w, torch.ones_like(w[:, :1])], -1)
    g, up = (u @ w1.T).float().clamp_max(limit), (u @ w3.T).float().clamp(-limit, limit)
    h = (g * torch.sigmoid(g) * up).unflatten(-1, (-1, inter)) * w[..., None]
    return h.flatten(1).to(u.dtype) @ w2.T, chosen.sum(0)


@compiled
def engram(x, e, wkv, q_weight, k_weight):
    """x [R,4,D] += gate_i * value."""
    D = x.shape[-1]
    kv = (e.to(x.dtype) @ wkv.T).float()
    key, value = kv[:, : 4 * D].unflatten(-1, (4, D)), kv[:, None, 4 * D :]
    f = x.float()
    rstd = torch.rsqrt(f.square().mean(-1) + 1e-20) * torch.rsqrt(key.square().mean(-1) + 1e-20)
    dot = (f * (q_weight * k_weight).float() * key).sum(-1) * rstd * D**-0.5
    size = torch.sqrt(dot.abs().clamp_min(1e-6))
    gate = torch.sigmoid(torch.where(dot < 0, -size, size))
    return (f + gate[..., None] * value).to(x.dtype)


# ------------------------------------------------------------ losses
@compiled
def token_loss(h, head, labels):
    return F.cross_entropy((h @ head.T).float(), labels)


@compiled
def draft_loss(normed, collapsed, prev, head, markov_head, conf, target_h, labels, weight):
    """Rows of draft blocks [R, .]: weighted loss, confidence loss, equal argmax, overlap."""
    ours = (normed @ head.T + prev @ markov_head.T).float()
    with torch.no_grad():
        theirs = torch.softmax((target_h @ head.T).float(), -1)
        best = theirs.argmax(-1)
    logp = torch.log_softmax(ours, -1)
    gap = (logp.exp() - theirs).abs().sum(-1)
    soft = -(theirs * logp).sum(-1)
    hard = F.cross_entropy(ours, labels, reduction='none')
    loss = ((0.9 * gap + 0.3 * soft + 0.1 * hard) * weight).mean()
    overlap = 1 - 0.5 * gap.detach()
    logit = torch.cat([collapsed, prev.float()], -1).detach() @ conf.float().T
    sure = F.binary_cross_entropy_with_logits(logit[:, 0], overlap)
    return loss, sure, ours.detach().argmax(-1) == best, overlap
