"""Trains the small model and exports it.
  python3 train.py --data DIR --out DIR --seconds 360 [--resume FILE]
The schedule follows the clock: --seconds is the length of the whole run, a run that was stopped
goes on from its state file (written every --save seconds) with the time that it had left."""

import argparse
import json
import os
import time

import torch

import ops
from config import CHECK, TINY_V41, Config
from engram import Hasher, sidecar
from evaluate import evaluate, samples
from export import export
from model import Model
from optimizer import Optimizer

DENSE_UNTIL, ROUND_AFTER, DECAY_AFTER = 0.20, 0.25, 0.35  # shares of the run
POSITION_WEIGHT = (1.3, 1.15, 1.0, 0.85, 0.7)  # of a draft block


class Source:
    """Windows of length + 1 tokens from the streams: half begin where a document does (a third of
    those without its first marker), half anywhere."""

    def __init__(self, parts, shares, device, length, seed):
        names = [k for k, (t, _) in parts.items() if len(t) > 2 * length]
        self.streams = [tuple(t.to(device) for t in parts[k]) for k in names]
        self.share = torch.tensor([shares[k] for k in names])
        self.base, self.length = torch.arange(length + 1, device=device), length
        self.device, self.generator = device, torch.Generator(device=device).manual_seed(seed)

    def batch(self, count):
        g, dev = self.generator, self.device
        n = (self.share / self.share.sum() * count).floor().long().tolist()
        n[0] += count - sum(n)
        out = []
        for (tokens, starts), k in zip(self.streams, n):
            last = len(tokens) - self.length - 2
            anywhere = torch.randint(last, (k,), generator=g, device=dev)
            which = torch.randint(len(starts), (k,), generator=g, device=dev)
            u = torch.rand(k, generator=g, device=dev)
            start = torch.where(u < 0.5, starts[which] + (u < 0.17), anywhere).clamp_max(last)
            out.append(tokens[start[:, None] + self.base])
        return torch.cat(out).long()


class Trainer:
    def __init__(self, model, side, device, batch, anchors):
        self.model, self.hasher, self.batch, self.anchors = (
            model,
            Hasher(side, torch, device),
            batch,
            anchors,
        )
        self.device = device
        self.optimizer = Optimizer(model)
        K = model.c.dspark_block_size
        self.weight = torch.tensor((POSITION_WEIGHT * K)[:K], device=device)
        self.mix, self.far = (torch.zeros((), device=device) for _ in range(2))

    def losses(self, tokens, anchors):
        m, c = self.model, self.model.c
        ids, labels, K = (
            tokens[:, :-1].contiguous(),
            tokens[:, 1:].contiguous(),
            c.dspark_block_size,
        )
        w = m.weights(self.mix)
        out = m(ids, self.hasher(ids), w, self.far)
        main = ops.token_loss(out['h'], w['head'], labels.flatten())
        B, T = ids.shape
        ahead = torch.arange(K, device=ids.device)
        collapsed, normed, dcounts = m.draft(ids, out['taps'], anchors, w)
        row = torch.arange(B, device=ids.device)[:, None, None]
        at = anchors[..., None] + 1 + ahead  # the token before each predicted one
        prev = ops.gather(w['membed'], ids[row, at]).to(m.dtype).flatten(0, 2)
        target = out['h'].detach().view(B, T, -1)[row, at].flatten(0, 2)
        weight = self.weight.expand(B, anchors.shape[1], K).flatten()
        draft, sure, same, overlap = ops.draft_loss(
            normed,
            collapsed,
            prev,
            w['head'].detach(),
            w['mhead'],
            w['conf'],
            target,
            labels[row, at].flatten(),
            weight,
        )
        run = same.view(-1, K).float().cumprod(1).sum(1).mean() + 1
        total = main + draft + 0.1 * sure + 0.3 * out['index_loss']
        figures = torch.stack(
            [
                main.detach(),
                draft.detach(),
                sure.detach(),
                torch.as_tensor(out['index_loss'], device=ids.device).detach(),
                run,
                overlap.mean(),
            ]
        )
        return total, figures, out['counts'], dcounts

    def step(self, tokens, factor, balance):
        c, T = self.model.c, tokens.shape[1] - 1
        anchors = torch.randint(
            T - c.dspark_block_size - 2, (tokens.shape[0], self.anchors), device=tokens.device
        )
        total, figures, counts, dcounts = self.losses(tokens, anchors)
        total.backward()
        self.optimizer.step(factor)
        with torch.no_grad():
            for bias, n in ((self.model.p.bias, counts), (self.model.p.dbias, dcounts)):
                n = n.float()
                bias += balance * torch.sign(n.mean(1, keepdim=True) - n)
                bias -= bias.mean(1, keepdim=True)
        return figures, counts


def save(path, trainer, spent, steps):
    state = dict(
        model=trainer.model.state_dict(),
        optimizer=trainer.optimizer.state_dict(),
        spent=spent,
        steps=steps,
    )
    torch.save(state, path + '.part')
    os.replace(path + '.part', path)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--data', required=True)
    ap.add_argument('--out', required=True)
    ap.add_argument('--seconds', type=float, default=360)
    ap.add_argument('--resume')
    ap.add_argument('--save', type=float, default=120)
    ap.add_argument('--batch', type=int, default=128)
    ap.add_argument('--length', type=int, default=512)
    ap.add_argument('--anchors', type=int, default=24)
    ap.add_argument('--steps', type=int, help='stop after this many steps, whatever the clock says')
    ap.add_argument('--small', action='store_true', help='the configuration of the checks')
    ap.add_argument('--backend', default='inductor', help='of torch.compile; none: no compiling')
    ap.add_argument('--dtype', choices=('bf16', 'f32'), default='bf16')
    args = ap.parse_args()
    begin = time.time()
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    data = torch.load(args.data + '/tokens.pt', weights_only=False)
    values = CHECK if args.small else TINY_V41
    values = dict(values, vocab_size=len(data['side']['token_map']))
    side = sidecar(values, json.loads(data['tokenizer']))
    values.update(
        engram_num_embeddings=side['rows'],
        engram_compressed_vocab_size=side['compressed_vocab_size'],
    )
    model = Model(
        Config(values), side['rows'], torch.bfloat16 if args.dtype == 'bf16' else torch.float32
    ).to(device)
    count = sum(p.numel() for n, p in model.p.named_parameters() if not n.startswith('tables'))
    print(f'{count / 1e6:.2f} M parameters without Engram rows', flush=True)
    if args.backend != 'none':
        ops.enable_compile(args.backend)
    source = Source(data['train'], data['shares'], device, args.length, 1)
    trainer = Trainer(model, side, device, args.batch, args.anchors)
    spent, step, log = 0.0, 0, []
    os.makedirs(args.out, exist_ok=True)
    state = os.path.join(args.out, 'state.pt')
    if args.resume:
        s = torch.load(args.resume, map_location=device, weights_only=False)
        model.load_state_dict(s['model']), trainer.optimizer.load_state_dict(s['optimizer'])
        spent, step = s['spent'], s['steps']
    if device == 'cuda':
        # Compiling is no part of the schedule: one step at rate 0 first.
        trainer.step(source.batch(args.batch), 0.0, 0.0)
        torch.cuda.synchronize()
        print(f'compiled after {time.time() - begin:.1f} s', flush=True)
    start = time.time() - spent
    saved, shown, first = time.time(), time.time(), step
    sums = None
    while True:
        if args.steps:
            f = step / args.steps
        elif step % 10 == 0 or device == 'cpu':
            if device == 'cuda':
                torch.cuda.synchronize()  # the clock must not run ahead of work
            f = (time.time() - start) / args.seconds
        if f >= 1:
            break
        trainer.mix.fill_(float(f > ROUND_AFTER)), trainer.far.fill_(-1e4 if f > DENSE_UNTIL else 0)
        factor = min(1.0, (step + 1) / 200) * min(1.0, (1 - f) / (1 - DECAY_AFTER))
        figures, counts = trainer.step(source.batch(args.batch), factor, 2e-3 * factor)
        sums = figures if sums is None else sums + figures
        step += 1
        every = 10 if device == 'cpu' else 100
        if step % every == 0:
            v = (sums / every).tolist()
            rate = every * args.batch * args.length / (time.time() - shown)
            load = (counts.float() / counts.float().mean(1, keepdim=True)).amax().item()
            line = dict(
                step=step,
                time=round(time.time() - start, 1),
                loss=round(v[0], 4),
                draft=round(v[1], 4),
                confidence=round(v[2], 4),
                index=round(v[3], 4),
                accepted=round(v[4], 3),
                overlap=round(v[5], 3),
                load=round(load, 2),
                tokens_per_s=int(rate),
            )
            log.append(line)
            print(json.dumps(line), flush=True)
            sums, shown = None, time.time()
            if v[0] != v[0]:
                raise SystemExit('the loss is not a number')
        if time.time() - saved > args.save:
            save(state, trainer, time.time() - start, step)
            saved = time.time()
    save(state, trainer, time.time() - start, step)
    size = export(model, args.out + '/checkpoint', side, data['tokenizer'])
    print(f'{step} steps, checkpoint of {size} bytes', flush=True)
    report = dict(
        parameters=count,
        steps=step,
        tokens=step * args.batch * args.length,
        seconds=round(time.time() - start, 1),
        bytes=size,
        log=log,
        unique_tokens={k: len(t) for k, (t, _) in data['train'].items()},
    )
    json.dump(report, open(args.out + '/report.json', 'w'), indent=1)
    with ops.eager():
        report['held_out'] = evaluate(model, side, data['held'], device, args.length)
    json.dump(report, open(args.out + '/report.json', 'w'), indent=1)
    print(json.dumps(report['held_out']), flush=True)
    with ops.eager():
        report['samples'] = samples(model, side, data['tokenizer'], device, args.length)
    json.dump(report, open(args.out + '/report.json', 'w'), indent=1, ensure_ascii=False)
    for s in report['samples']:
        print('---', s, flush=True)


if __name__ == '__main__':
    main()
