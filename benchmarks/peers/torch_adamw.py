#!/usr/bin/env python3
"""Times PyTorch's AdamW alone on the CPU, in GB/s by Tessera's count: 28 bytes a parameter.

    python3 benchmarks/peers/torch_adamw.py [--threads 2] [--json FILE]

fp32: parameter, gradient and moments of 4 bytes, of which all but the gradient are written. bf16: parameter and
gradient of 2 bytes; a master copy in fp32 is stepped with the gradient cast to fp32, then cast back. Both have to
move 28 bytes; PyTorch's casts move more. The copy of a tensor of the same parameters (8 bytes each) stands beside.

Needs the package torch.
"""
import argparse
import json
import statistics
import sys
import time

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)

BYTES_A_PARAMETER, COPY_BYTES = 28, 8


def fp32_step(numel, kind):
    parameter = torch.nn.Parameter(torch.randn(numel))
    parameter.grad = torch.randn(numel)
    return torch.optim.AdamW([parameter], lr=1e-3, **{kind: True}).step


def bf16_step(numel, kind):
    parameter, gradient = torch.randn(numel).bfloat16(), torch.randn(numel).bfloat16()
    master = torch.nn.Parameter(parameter.float())
    master.grad = torch.empty(numel)
    optimizer = torch.optim.AdamW([master], lr=1e-3, **{kind: True})

    def step():
        master.grad.copy_(gradient)
        optimizer.step()
        parameter.copy_(master.detach())

    return step


def copy_step(numel, _):
    source, target = torch.randn(numel), torch.empty(numel)
    return lambda: target.copy_(source)


def measure(step, seconds):
    """The median time of as many steps as fit, at least 5; two before them do not count."""
    times = []
    while len(times) < 7 or sum(times) < seconds:
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--numel", type=int, nargs="+", default=[1_000_000, 64_000_000])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = []
    print(f"torch {torch.__version__}, {options.threads} threads")
    print("parameters  type  kind      ms       GB/s")
    for numel in options.numel:
        for dtype, make, kind, bytes_each in (("fp32", fp32_step, "fused", BYTES_A_PARAMETER),
                                              ("fp32", fp32_step, "foreach", BYTES_A_PARAMETER),
                                              ("bf16", bf16_step, "fused", BYTES_A_PARAMETER),
                                              ("bf16", bf16_step, "foreach", BYTES_A_PARAMETER),
                                              ("fp32", copy_step, "copy", COPY_BYTES)):
            seconds = measure(make(numel, kind), options.seconds)
            rate = bytes_each * numel / seconds / 1e9
            results.append({"parameters": numel, "type": dtype, "kind": kind, "ms": seconds * 1e3, "GB/s": rate})
            print(f"{numel:10}  {dtype}  {kind:7}  {seconds * 1e3:7.3f}  {rate:6.1f}", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "threads": options.threads, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
