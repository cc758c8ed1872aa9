"""A Llama in PyTorch, for the scripts that time one: torch_llama_step.py and torch_llama_offload.py. Each block is
recomputed in backward. Needs the package torch."""
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
