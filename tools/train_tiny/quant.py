"""Quantizers of the released format as straight-through functions: the forward value is the
quantized one, the gradient passes unchanged.  All arithmetic is float32."""

import torch


def pow2ceil(t):
    """2^ceil(log2 t) for positive normal float32, by adding to the bits."""
    bits = t.contiguous().view(torch.int32)
    return ((bits + 0x7FFFFF) & 0x7F800000).view(torch.float32)


def round_e4m3(v):
    return v.to(torch.float8_e4m3fn).float()


def round_e2m1(v):
    """Nearest of 0 .5 1 1.5 2 3 4 6, ties to the even code: steps of .5, 1 and 2 by magnitude."""
    a = v.abs()
    low, mid, high = torch.round(v * 2) * 0.5, torch.round(v), torch.round(v * 0.5) * 2
    return torch.where(a < 2, low, torch.where(a < 4, mid, high))


def through(x, q):
    """Value q, gradient of x."""
    return x + (q - x).detach()


def _blocks(x, size):
    return x.float().unflatten(-1, (x.shape[-1] // size, size))


def fp8q(x, size=32):
    b = _blocks(x.detach(), size)
    s = pow2ceil(b.abs().amax(-1, keepdim=True).clamp_min(1e-4) * (1 / 448))
    return through(x.float(), (round_e4m3((b / s).clamp(-448, 448)) * s).flatten(-2)).to(x.dtype)


def fp4q_ue8m0(x, size=32):
    b = _blocks(x.detach(), size)
    s = pow2ceil(b.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-126) * (1 / 6))
    return through(x.float(), (round_e2m1((b / s).clamp(-6, 6)) * s).flatten(-2)).to(x.dtype)


def fp4q_e4m3(x, size=16):
    b = _blocks(x.detach(), size)
    s = round_e4m3((b.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-9) / 6).clamp_max(448))
    return through(x.float(), (round_e2m1((b / s).clamp(-6, 6)) * s).flatten(-2)).to(x.dtype)


def fp8_scale(w, rows):
    """Scale of every rows x 32 block of [..., N, K] -> [..., N/rows, K/32]."""
    b = w.unflatten(-1, (-1, 32)).unflatten(-3, (-1, rows))
    return pow2ceil(b.abs().amax((-1, -3)).clamp_min(1e-12) * (1 / 448))


def fp4_scale(w):
    b = w.unflatten(-1, (-1, 32))
    return pow2ceil(b.abs().amax(-1).clamp_min(1e-12) * (1 / 6))


def weight_fp8(w, mix, dtype, rows=32):
    """FP8 matrix with one power-of-two scale per block; mix 0 = as it is, 1 = quantized."""
    v = w.detach()
    s = fp8_scale(v, rows).repeat_interleave(rows, -2).repeat_interleave(32, -1)
    return (w + (mix * (round_e4m3(v / s) * s - v)).detach()).to(dtype)


def weight_fp4(w, mix, dtype):
    """MXFP4 matrix: one power-of-two scale per row and 32 columns."""
    v = w.detach()
    s = fp4_scale(v).repeat_interleave(32, -1)
    return (w + (mix * (round_e2m1(v / s) * s - v)).detach()).to(dtype)
