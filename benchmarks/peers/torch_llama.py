"""A Llama in PyTorch, for the scripts that time one: torch_llama_step.py and torch_llama_offload.py. Each block is
recomputed in backward. And what these scripts share: their arguments, the timed steps, the result. Needs the package
torch."""
import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

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


def parameter_groups(model):
    """For AdamW: matrices and embeddings decay, norms do not."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]


def parser_of(description, preset, warmup, steps):
    """The arguments that all scripts have, with this one's defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default=preset)
    parser.add_argument("--layers", type=int, default=0, help="0: the preset's")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="cpu: to try the script itself")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--warmup", type=int, default=warmup)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--json", metavar="FILE")
    return parser


def parse(parser):
    """The options. Ends the script where they want a GPU and torch sees none."""
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch sees no GPU")
        sys.exit(0)
    return options


def dimensions_of(options):
    dimensions = list(PRESETS[options.preset])
    dimensions[1] = options.layers or dimensions[1]
    return dimensions


def timed_steps(model, options, autocast):
    """Seconds of each timed step, and the loss of every step. With `autocast` forward runs under it, in bf16."""
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=1e-5, betas=(0.9, 0.95), fused=True)
    settle = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    vocabulary = PRESETS[options.preset][0]
    seconds, losses = [], []
    for _ in range(options.warmup + options.steps):
        tokens = torch.randint(0, vocabulary, (options.sequences, options.length + 1), device=options.device)
        settle()
        begin = time.perf_counter()
        with torch.autocast(options.device, torch.bfloat16, enabled=autocast):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        settle()
        seconds.append(time.perf_counter() - begin)
        losses.append(loss.item())
        print(f"step {len(seconds)}: {seconds[-1]:.3f} s, loss {losses[-1]:.4f}", flush=True)
    return seconds[options.warmup:], losses


def result_of(options, model, seconds):
    """What every script measures, beside its options."""
    return vars(options) | {"torch": torch.__version__, "parameters": sum(p.numel() for p in model.parameters()),
                            "seconds": seconds,
                            "tokens_per_second": options.sequences * options.length / statistics.median(seconds),
                            "device_bytes": torch.cuda.max_memory_reserved() if options.device == "cuda" else 0}


def report(result, columns):
    """Prints a table of one row, and writes `result` where --json says. `columns`: headings and texts that stand
    between the batch and the time, and behind the GPU's memory."""
    between, behind = columns
    row = [("torch", f"{result['torch']:14}"), ("parameters", f"{result['parameters'] / 1e9:9.2f}B"),
           ("batch", f"{result['sequences']}x{result['length']:<7}"), *between,
           ("s/step", f"{statistics.median(result['seconds']):6.3f}"),
           ("tokens/s", f"{result['tokens_per_second']:8.1f}"),
           ("GPU GiB", f"{result['device_bytes'] / 2**30:7.1f}"), *behind]
    if result["device"] == "cuda":
        print(torch.cuda.get_device_name())
    for line in zip(*((f"{title:{len(text)}}", f"{text:{len(title)}}") for title, text in row)):
        print("  ".join(line).rstrip())
    if result["json"]:
        with open(result["json"], "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
