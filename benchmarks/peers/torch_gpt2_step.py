#!/usr/bin/env python3
"""Times PyTorch's training step of GPT-2: the same work as `tessera train` with model.preset gpt2-124m, or
another of GPT-2's.

    python3 benchmarks/peers/torch_gpt2_step.py --dtype bf16 --mode compile --sequences 1 --length 256
    python3 benchmarks/peers/torch_gpt2_step.py --processes 2 --threads 1 --sequences 2 --length 64
    python3 benchmarks/peers/torch_gpt2_step.py --device cuda --dtype bf16 --sequences 8 --length 1024
    python3 benchmarks/peers/torch_gpt2_step.py --device cuda --dtype bf16 --preset gpt2-1558m --mode compile-blocks

Equal work: the preset's dimensions, vocabulary 50257, head tied to the embedding, tanh GELU, no dropout,
cross-entropy over all tokens, nothing recomputed, gradients clipped at norm 1, AdamW (0.9, 0.95, 1e-8, decay 0.1 of
matrices and embeddings). bf16 is autocast: fp32 weights, matmuls and attention in bf16, where Tessera has bf16
weights and activations, and fp32 masters. compile-blocks compiles a block once for all, which takes less time than the
whole of a deep model. Several processes are DistributedDataParallel over gloo, --sequences each.
On a GPU a step is over when the device is done with it.

What makes it fast on the CPU is an allocator that keeps memory, against page faults in every step (Debian's
libjemalloc2):

    LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1 python3 ...

The table says whether it was there. Each default beside what else could be had, in tokens per second of CPU
time (torch 2.15, Zen 4, one thread, bf16, best of 4 steps): jemalloc 170, libc 135; fused AdamW 170, foreach 158;
scaled_dot_product_attention 170, explicit 180 (fp32: 80, 93); eager 170, compiled 168. Of the last two measure both.
Needs the package torch; --mode compile a C++ compiler, too.
"""
import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)

VOCABULARY, CONTEXT = 50257, 1024
PRESETS = {  # layers, heads, channels
    "gpt2-tiny": (2, 2, 16),  # to try the script itself
    "gpt2-124m": (12, 12, 768),
    "gpt2-355m": (24, 16, 1024),
    "gpt2-774m": (36, 20, 1280),
    "gpt2-1558m": (48, 25, 1600),
}


class Block(nn.Module):
    def __init__(self, heads, channels, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.projection = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def attend(self, q, k, v):
        if self.attention == "sdpa":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        length = q.shape[2]
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        mask = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        return scores.masked_fill(mask, -math.inf).softmax(-1).to(v.dtype) @ v

    def forward(self, x):
        sequences, length, channels = x.shape
        heads = self.qkv(self.norm1(x)).view(sequences, length, 3, self.heads, channels // self.heads)
        mixed = self.attend(*(part.transpose(1, 2) for part in heads.unbind(2)))
        x = x + self.projection(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers, heads, channels, attention):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, channels), nn.Embedding(CONTEXT, channels)
        self.blocks = nn.Sequential(*(Block(heads, channels, attention) for _ in range(layers)))
        self.norm = nn.LayerNorm(channels)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):
        x = self.token(inputs) + self.position(torch.arange(inputs.shape[1], device=inputs.device))
        logits = F.linear(self.norm(self.blocks(x)), self.token.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def make_optimizer(model, kind):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), **{kind: True})


def time_steps(options, rank):
    """Seconds of each timed step on this rank, and the loss of the last."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    with torch.device(options.device):
        module = model = Gpt2(*PRESETS[options.preset], options.attention)
    if options.processes > 1:
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
    if options.mode == "compile":
        model = torch.compile(model)
    elif options.mode == "compile-blocks":
        for block in module.blocks:
            block.compile()
    optimizer = make_optimizer(module, options.optimizer)
    torch.manual_seed(2 + rank)
    settle = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    seconds = []
    for _ in range(options.warmup + options.steps):
        tokens = torch.randint(0, VOCABULARY, (options.sequences, options.length + 1), device=options.device)
        settle()
        begin = time.perf_counter()
        with torch.autocast(options.device, torch.bfloat16, enabled=options.dtype == "bf16"):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        settle()
        seconds.append(time.perf_counter() - begin)
    return seconds[options.warmup:], loss.item()


def run_process(rank, options, folder):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= options.processes * options.threads:  # each process has cores of its own
        os.sched_setaffinity(0, cores[rank * options.threads:(rank + 1) * options.threads])
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank,
                                         world_size=options.processes)
    seconds, loss = time_steps(options, rank)
    if rank == 0:
        with open(f"{folder}/result", "w", encoding="utf-8") as file:
            json.dump([seconds, loss], file)
    torch.distributed.destroy_process_group()


def measure(options):
    if options.processes == 1:
        return time_steps(options, 0)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_process, (options, folder), options.processes)
        with open(f"{folder}/result", encoding="utf-8") as file:
            return json.load(file)


def allocator():
    with open("/proc/self/maps", encoding="utf-8") as maps:
        text = maps.read()
    return next((name for name in ("jemalloc", "tcmalloc") if name in text), "libc")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--preset", choices=PRESETS, default="gpt2-124m")
    parser.add_argument("--mode", choices=("eager", "compile", "compile-blocks"), default="eager")
    parser.add_argument("--attention", choices=("sdpa", "explicit"), default="sdpa")
    parser.add_argument("--optimizer", choices=("fused", "foreach"), default="fused")
    parser.add_argument("--sequences", type=int, default=1, help="of each process")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2, help="of each process")
    parser.add_argument("--processes", type=int, default=1, help="more than 1: DistributedDataParallel over gloo")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if options.device == "cuda" and options.processes > 1:
        parser.error("--processes 2 and more are of the CPU: they speak by gloo")
    if options.device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch sees no GPU")
        sys.exit(0)
    try:
        seconds, loss = measure(options)
    except torch.cuda.OutOfMemoryError as error:
        print(f"skipped: PyTorch has no room: {str(error).splitlines()[0]}")
        sys.exit(0)
    tokens = options.processes * options.sequences * options.length
    median = statistics.median(seconds)
    result = vars(options) | {"torch": torch.__version__, "allocator": allocator(), "tokens": tokens, "loss": loss,
                              "seconds": seconds, "tokens_per_second": tokens / median,
                              "best_tokens_per_second": tokens / min(seconds)}
    if options.device == "cuda":
        result["device_bytes"] = torch.cuda.max_memory_reserved()
        print(torch.cuda.get_device_name())
    print("torch           allocator  processes  threads  batch    dtype  mode            attention  optimizer  "
          "s/step  tokens/s    best")
    print(f"{torch.__version__:14}  {result['allocator']:9}  {options.processes:9}  {options.threads:7}  "
          f"{options.sequences}x{options.length:<5}  {options.dtype:5}  {options.mode:14}  {options.attention:9}  "
          f"{options.optimizer:9}  {median:6.3f}  {result['tokens_per_second']:8.1f}  "
          f"{result['best_tokens_per_second']:6.1f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
