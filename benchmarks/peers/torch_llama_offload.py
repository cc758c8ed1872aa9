#!/usr/bin/env python3
"""Times PyTorch's training step of a Llama whose states are in host memory: FSDP2 (fully_shard) with CPUOffloadPolicy on
one GPU. The same work as `tessera train benchmarks/peers/llama_offload.toml`.

    python3 benchmarks/peers/torch_llama_offload.py --layers 20
    python3 benchmarks/peers/torch_llama_offload.py --preset llama-tiny --device cpu --length 64

Equal work: the preset's dimensions, bf16 matmuls and attention, each block recomputed in backward, gradients clipped at
norm 1, AdamW (0.9, 0.95, 1e-8, decay 0.1 of matrices and embeddings) by the host's cores, fp32 masters and moments.
Where they differ: FSDP2 keeps its fp32 parameters on the host alone, from which it casts and uploads each block's twice a
step, and its gradients as fp32; Tessera keeps bf16 parameters on the GPU, too (offload.parameters=host: not), and brings
bf16 gradients down. So PyTorch takes 16 bytes of host memory a parameter, pinned in blocks of powers of two, and Tessera
14: of 8B parameters 120 GiB and more, beside 106; --layers takes fewer on both sides (model.layers).

Prints the median step, tokens per second, the peak of GPU memory that PyTorch's allocator held and of the process.
"""
import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    from torch.utils.checkpoint import checkpoint
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)

# vocabulary, layers, heads, kv_heads, channels, hidden, theta
PRESETS = {
    "llama-tiny": (256, 6, 6, 2, 384, 1024, 1e4),
    "llama-7b": (32000, 32, 32, 32, 4096, 11008, 1e4),
    "llama-8b": (128256, 32, 32, 8, 4096, 14336, 5e5),
    "llama-13b": (32000, 40, 40, 40, 5120, 13824, 1e4),
}


class Block(nn.Module):
    def __init__(self, heads, kv_heads, channels, hidden):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, channels // heads
        self.norm1, self.norm2 = nn.RMSNorm(channels, 1e-5), nn.RMSNorm(channels, 1e-5)
        self.q = nn.Linear(channels, channels, bias=False)
        self.k = nn.Linear(channels, kv_heads * self.size, bias=False)
        self.v = nn.Linear(channels, kv_heads * self.size, bias=False)
        self.projection = nn.Linear(channels, channels, bias=False)
        self.gate, self.up = nn.Linear(channels, hidden, bias=False), nn.Linear(channels, hidden, bias=False)
        self.down = nn.Linear(hidden, channels, bias=False)

    def split(self, x, heads):
        return x.view(*x.shape[:2], heads, self.size).transpose(1, 2)

    def forward(self, x, cosine, sine):
        def rotate(part):
            left, right = part.chunk(2, -1)
            return part * cosine + torch.cat((-right, left), -1) * sine

        normed = self.norm1(x)
        q, k = rotate(self.split(self.q(normed), self.heads)), rotate(self.split(self.k(normed), self.kv_heads))
        mixed = F.scaled_dot_product_attention(q, k, self.split(self.v(normed), self.kv_heads), is_causal=True,
                                               enable_gqa=self.heads != self.kv_heads)
        x = x + self.projection(mixed.transpose(1, 2).reshape(x.shape))
        normed = self.norm2(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    def __init__(self, vocabulary, layers, heads, kv_heads, channels, hidden, theta):
        super().__init__()
        self.size, self.theta = channels // heads, theta
        self.token = nn.Embedding(vocabulary, channels)
        self.blocks = nn.ModuleList(Block(heads, kv_heads, channels, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(channels, 1e-5)
        self.head = nn.Linear(channels, vocabulary, bias=False)

    def forward(self, inputs, targets):
        x = self.token(inputs)
        waves = self.theta ** (-torch.arange(0, self.size, 2, device=inputs.device) / self.size)
        angles = torch.outer(torch.arange(inputs.shape[1], device=inputs.device), waves).repeat(1, 2)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = checkpoint(block, x, cosine, sine, use_reentrant=False)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def make_model(options):
    dimensions = list(PRESETS[options.preset])
    dimensions[1] = options.layers or dimensions[1]
    with torch.device("meta"):
        model = Llama(*dimensions)
    settings = {
        "mesh": init_device_mesh(options.device, (1,)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=options.device == "cuda"),
    }
    for part in (model.token, *model.blocks):
        fully_shard(part, **settings)
    fully_shard([model.norm, model.head], reshard_after_forward=False, **settings)
    fully_shard(model, **settings)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        own = parameter.detach().to_local()  # all of it: one rank
        if own.dim() == 2:
            nn.init.normal_(own, std=0.02)
        else:
            nn.init.ones_(own)
    return model


def train(options):
    """Seconds of each timed step, and the loss of every step."""
    torch.manual_seed(1)
    model = make_model(options)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-5, betas=(0.9, 0.95), fused=True)
    settle = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    vocabulary = PRESETS[options.preset][0]
    seconds, losses = [], []
    for _ in range(options.warmup + options.steps):
        tokens = torch.randint(0, vocabulary, (options.sequences, options.length + 1), device=options.device)
        settle()
        begin = time.perf_counter()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        settle()
        seconds.append(time.perf_counter() - begin)
        losses.append(loss.item())
        print(f"step {len(seconds)}: {seconds[-1]:.2f} s, loss {losses[-1]:.4f}", flush=True)
    return seconds[options.warmup:], losses, sum(p.numel() for p in model.parameters())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="llama-8b")
    parser.add_argument("--layers", type=int, default=0, help="0: the preset's")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="cpu: to try the script itself")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the optimizer")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch sees no GPU")
        sys.exit(0)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        # gloo, too: the norm is of gradients on the host.
        dist.init_process_group("cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo",
                                init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        seconds, losses, parameters = train(options)
        dist.destroy_process_group()
    median = statistics.median(seconds)
    tokens = options.sequences * options.length
    on_gpu = torch.cuda.max_memory_reserved() if options.device == "cuda" else 0
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = vars(options) | {"torch": torch.__version__, "parameters": parameters, "losses": losses,
                              "seconds": seconds, "tokens_per_second": tokens / median, "device_bytes": on_gpu,
                              "process_bytes": resident}
    if options.device == "cuda":
        print(torch.cuda.get_device_name())
    print("torch           parameters  batch      threads  s/step  tokens/s  GPU GiB  process GiB")
    print(f"{torch.__version__:14}  {parameters / 1e9:9.2f}B  {options.sequences}x{options.length:<7}  "
          f"{options.threads:7}  {median:6.2f}  {tokens / median:8.1f}  {on_gpu / 2**30:7.1f}  "
          f"{resident / 2**30:11.1f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
