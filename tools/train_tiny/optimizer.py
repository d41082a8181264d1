"""Muon for the matrices of the layers, Adam for the rest.  Stacked parameters make one batched
orthogonalization per kind."""

import torch

MUON = (
    'wq_a',
    'wq_b',
    'wkv',
    'wo_a',
    'wo_b',
    'w1',
    'w2',
    'w3',
    'dw1',
    'dw2',
    'dw3',
    's1',
    's2',
    's3',
    'cwkv',
    'cwgate',
    'ewkv',
    'main_proj',
)
# Learning rates of Adam by name; matrices that are tables learn faster than norms.
ADAM = dict(
    embed=1e-2,
    head=4e-3,
    membed=6e-3,
    mhead=3e-3,
    tables=1e-2,
    fn=2e-3,
    base=5e-3,
    scale=2e-3,
    sink=1e-2,
    gate=3e-3,
    dgate=3e-3,
    iwk=2e-3,
    iwq_b=2e-3,
    iwp=2e-3,
    conf=3e-3,
)
ADAM_REST = 3e-3


def orthogonal(m, steps=5):
    """Newton-Schulz iteration towards U V^T of each matrix of a stack, bfloat16."""
    x = m.bfloat16()
    flip = x.shape[-2] > x.shape[-1]
    x = x.mT if flip else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x
    return x.mT if flip else x


class Optimizer:
    def __init__(self, model, muon_lr=0.02, momentum=0.95):
        named = dict(model.p.named_parameters())
        self.muon = {n: p for n, p in named.items() if n in MUON}
        self.velocity = {n: torch.zeros_like(p) for n, p in self.muon.items()}
        self.muon_lr, self.momentum = muon_lr, momentum
        groups = {}
        for n, p in named.items():
            if n not in MUON:
                groups.setdefault(ADAM.get(n.split('.')[0], ADAM_REST), []).append(p)
        self.adam = torch.optim.Adam(
            [dict(params=ps, lr=lr, base=lr) for lr, ps in groups.items()],
            betas=(0.9, 0.95),
            eps=1e-10,
            fused=next(iter(named.values())).is_cuda,
        )

    @torch.no_grad()
    def step(self, factor):
        for group in self.adam.param_groups:
            group['lr'] = group['base'] * factor
        self.adam.step()
        for n, p in self.muon.items():
            v = self.velocity[n]
            v.lerp_(p.grad, 1 - self.momentum)
            u = orthogonal(
                torch.lerp(p.grad, v, self.momentum).flatten(0, -3)
                if p.dim() > 2
                else torch.lerp(p.grad, v, self.momentum)[None]
            )
            gain = max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5
            # A little decay keeps the norms, and so the 4-bit steps, in range.
            p.mul_(1 - self.muon_lr * factor * 0.05)
            p.add_(u.reshape(p.shape).float(), alpha=-self.muon_lr * factor * gain)
        for p in (*self.muon.values(), *(p for g in self.adam.param_groups for p in g['params'])):
            p.grad = None

    def state_dict(self):
        return dict(adam=self.adam.state_dict(), velocity=self.velocity)

    def load_state_dict(self, state):
        self.adam.load_state_dict(state['adam'])
        for n, v in state['velocity'].items():
            self.velocity[n].copy_(v)
