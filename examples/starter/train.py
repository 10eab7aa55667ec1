"""Trains the starter for a given time.

    python train.py --seconds 1200 --out build/model.pt

On several GPUs of one host: torchrun --nproc-per-node N train.py …. The rate falls and the documents grow with the time that has passed, so the same command does as much as the machine can.
"""

import argparse
import math
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import data
from model import CONFIG, Packing, Starter


def placed(row, device):
    """A row on the device: tokens, positions, packing, places whose next token is learned, and those tokens."""
    kind, tokens, learned, starts = row
    tokens_t = torch.from_numpy(tokens.astype(np.int64)).to(device, non_blocking=True)
    starts_t = torch.from_numpy(starts).to(device, non_blocking=True)
    bounds = starts[: np.searchsorted(starts, data.ROW_TOKENS) + 1]
    positions = torch.from_numpy(np.arange(data.ROW_TOKENS) - np.repeat(bounds[:-1], np.diff(bounds))).to(device, non_blocking=True)
    places = torch.from_numpy(learned.astype(np.int64)).to(device, non_blocking=True)
    return tokens_t, positions, Packing(starts_t, data.KINDS[kind][0]), places - 1, tokens_t[places]


def rate(progress, step, peak):
    warm = min(1.0, (step + 1) / 100)
    fall = 1.0 if progress < 0.5 else 0.5 * (1 + math.cos(math.pi * (progress - 0.5) / 0.5)) * 0.98 + 0.02
    return peak * warm * fall


def optimizer_of(model, peak):
    wide = [p for p in model.parameters() if p.ndim > 1]
    thin = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": wide, "weight_decay": 0.05}, {"params": thin, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=torch.cuda.is_available())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--out", type=Path, default=Path("build/model.pt"))
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--peak", type=float, default=1.5e-3)
    parser.add_argument("--from-progress", type=float, default=0.0, help="where in the course of lengths to begin")
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(rank)
    if world > 1:
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    rows = data.Rows(args.seed * 10 + rank, args.workers)
    model = Starter(CONFIG).to(device)
    if args.resume:
        model.load_state_dict(torch.load(args.resume, map_location=device))
    if not args.eager:
        model.compile()
    optimizer = optimizer_of(model, args.peak)
    started = shown = saved = time.time()
    step, tokens_seen, losses = 0, 0, {}
    while (elapsed := agreed(time.time() - started, device, world)) < args.seconds:
        progress = elapsed / args.seconds
        course = args.from_progress + (1 - args.from_progress) * progress
        rows.progress.value = course
        for group in optimizer.param_groups:
            group["lr"] = rate(progress, step, args.peak)
        row = rows.next()
        tokens, positions, packing, places, targets = placed(row, device)
        with torch.autocast(device, torch.bfloat16):
            logits = model(tokens, positions, packing, places)
        loss = F.cross_entropy(logits.float(), targets)
        loss.backward()
        if world > 1:
            average_gradients(model, world)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, tokens_seen = step + 1, tokens_seen + world * len(row[1])
        losses.setdefault(row[0], []).append(loss.detach())
        if rank == 0 and time.time() - shown > 10:
            shown = time.time()
            means = {kind: round(torch.stack(values[-30:]).mean().item(), 4) for kind, values in losses.items() if values}
            losses.clear()
            print(f"{elapsed:6.0f} s  step {step}  {tokens_seen / elapsed / 1e6:.2f} Mtok/s  rows made {rows.made} again {rows.again}  learned {len(row[2])}  loss {means}", flush=True)
        if rank == 0 and time.time() - saved > 60:
            saved = time.time()
            save(model, args.out)
    if rank == 0:
        save(model, args.out)
    print(f"done: {step} steps, {tokens_seen / 1e9:.2f} billion tokens, {rows.made} rows made, {rows.again} seen again", flush=True)
    rows.close()
    if world > 1:
        dist.destroy_process_group()


def agreed(elapsed, device, world):
    """The first process's clock, so that all end with the same step."""
    if world == 1:
        return elapsed
    clock = torch.tensor([elapsed], device=device)
    dist.broadcast(clock, 0)
    return clock.item()


def average_gradients(model, world):
    gradients = [p.grad for p in model.parameters()]
    flat = torch._utils._flatten_dense_tensors(gradients)
    dist.all_reduce(flat)
    flat /= world
    for gradient, mean in zip(gradients, torch._utils._unflatten_dense_tensors(flat, gradients)):
        gradient.copy_(mean)


def save(model, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save({k: v.detach().float().cpu() for k, v in model.state_dict().items()}, partial)
    partial.rename(path)


if __name__ == "__main__":
    main()
