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
import sys

try:
    import torch
    from torch import nn
    from torch_llama import Llama, dimensions_of, parse, parser_of, report, result_of, timed_steps
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)


def make_model(options):
    torch.manual_seed(1)
    with torch.device(options.device):
        model = Llama(*dimensions_of(options))
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)
    if options.mode == "compile-blocks":
        for block in model.blocks:
            block.compile()
    return model


def main():
    parser = parser_of(__doc__, "llama-7b", warmup=3, steps=8)
    parser.add_argument("--mode", choices=("eager", "compile-blocks"), default="eager")
    options = parse(parser)
    try:
        model = make_model(options)
        seconds, losses = timed_steps(model, options, autocast=True)
    except torch.cuda.OutOfMemoryError as error:
        print(f"skipped: PyTorch has no room: {str(error).splitlines()[0]}")
        sys.exit(0)
    result = result_of(options, model, seconds) | {"loss": losses[-1]}
    report(result, ([("mode", f"{options.mode:14}")], []))


if __name__ == "__main__":
    main()
