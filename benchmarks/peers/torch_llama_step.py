#!/usr/bin/env python3
"""Times PyTorch's training step of a Llama that lies on one GPU with its states. The same work as `tessera train
benchmarks/peers/llama_step.toml`.

    python3 benchmarks/peers/torch_llama_step.py --layers 20
    python3 benchmarks/peers/torch_llama_step.py --layers 20 --mode compile-blocks
    python3 benchmarks/peers/torch_llama_step.py --preset llama-tiny --device cpu --length 64

Equal work: the preset's dimensions, each block recomputed in backward, gradients clipped at norm 1, fused AdamW (0.9,
0.95, 1e-8, decay 0.1 of matrices and embeddings). bf16 is autocast: fp32 weights, gradients and moments, products and
attention in bf16. That is 16 bytes a parameter, as Tessera's bf16 weights and gradients and fp32 masters and moments
are. compile-blocks compiles a block once for all.

Prints the median step, tokens per second, and the peak of GPU memory that PyTorch's allocator held.
"""
import argparse
import json
import statistics
import sys
import time

try:
    import torch
    from torch import nn
    from torch_llama import PRESETS, Llama, parameter_groups
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)


def make_model(options):
    dimensions = list(PRESETS[options.preset])
    dimensions[1] = options.layers or dimensions[1]
    torch.manual_seed(1)
    with torch.device(options.device):
        model = Llama(*dimensions)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)
    if options.mode == "compile-blocks":
        for block in model.blocks:
            block.compile()
    return model


def train(options):
    """Seconds of each timed step, the loss of the last, and the parameters."""
    model = make_model(options)
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=1e-5, betas=(0.9, 0.95), fused=True)
    settle = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    vocabulary = PRESETS[options.preset][0]
    seconds = []
    for _ in range(options.warmup + options.steps):
        tokens = torch.randint(0, vocabulary, (options.sequences, options.length + 1), device=options.device)
        settle()
        begin = time.perf_counter()
        with torch.autocast(options.device, torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        settle()
        seconds.append(time.perf_counter() - begin)
        print(f"step {len(seconds)}: {seconds[-1]:.3f} s, loss {loss.item():.4f}", flush=True)
    return seconds[options.warmup:], loss.item(), sum(p.numel() for p in model.parameters())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="llama-7b")
    parser.add_argument("--layers", type=int, default=0, help="0: the preset's")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="cpu: to try the script itself")
    parser.add_argument("--mode", choices=("eager", "compile-blocks"), default="eager")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch sees no GPU")
        sys.exit(0)
    try:
        seconds, loss, parameters = train(options)
    except torch.cuda.OutOfMemoryError as error:
        print(f"skipped: PyTorch has no room: {str(error).splitlines()[0]}")
        sys.exit(0)
    median = statistics.median(seconds)
    tokens = options.sequences * options.length
    on_gpu = torch.cuda.max_memory_reserved() if options.device == "cuda" else 0
    result = vars(options) | {"torch": torch.__version__, "parameters": parameters, "loss": loss, "seconds": seconds,
                              "tokens_per_second": tokens / median, "device_bytes": on_gpu}
    if options.device == "cuda":
        print(torch.cuda.get_device_name())
    print("torch           parameters  batch      mode            s/step  tokens/s  GPU GiB")
    print(f"{torch.__version__:14}  {parameters / 1e9:9.2f}B  {options.sequences}x{options.length:<7}  {options.mode:14}  "
          f"{median:6.3f}  {tokens / median:8.1f}  {on_gpu / 2**30:7.1f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
