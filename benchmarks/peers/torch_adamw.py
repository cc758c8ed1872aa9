#!/usr/bin/env python3
"""Times PyTorch's AdamW alone, in GB/s by Tessera's count: 28 bytes a parameter.

    python3 benchmarks/peers/torch_adamw.py [--device cpu|cuda] [--threads 2] [--numel N...] [--json FILE]

fp32: parameter, gradient and moments of 4 bytes, of which all but the gradient are written. bf16: parameter and
gradient of 2 bytes; a master copy in fp32 is stepped with the gradient cast to fp32, then cast back. Both have to
move 28 bytes; PyTorch's casts move more. The copy of a tensor of the same parameters (8 bytes each) stands beside. On a GPU
times are between events of the device.

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


def fp32_step(numel, kind, device):
    parameter = torch.nn.Parameter(torch.randn(numel, device=device))
    parameter.grad = torch.randn(numel, device=device)
    return torch.optim.AdamW([parameter], lr=1e-3, **{kind: True}).step


def bf16_step(numel, kind, device):
    parameter, gradient = (torch.randn(numel, device=device).bfloat16() for _ in range(2))
    master = torch.nn.Parameter(parameter.float())
    master.grad = torch.empty(numel, device=device)
    optimizer = torch.optim.AdamW([master], lr=1e-3, **{kind: True})

    def step():
        master.grad.copy_(gradient)
        optimizer.step()
        parameter.copy_(master.detach())

    return step


def copy_step(numel, _, device):
    source, target = torch.randn(numel, device=device), torch.empty(numel, device=device)
    return lambda: target.copy_(source)


def cpu_seconds(step):
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def cuda_seconds(step, calls=4):
    """Of one of `calls`, over which what starting the first takes is shared out."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / calls


def measure(step, seconds, seconds_of):
    """The median time of as many steps as fit, at least 5; two before them do not count."""
    times = []
    while len(times) < 7 or sum(times) < seconds:
        times.append(seconds_of(step))
    return statistics.median(times[2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--numel", type=int, nargs="+", default=[1_000_000, 64_000_000])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch sees no GPU")
        sys.exit(0)
    torch.set_num_threads(options.threads)
    seconds_of = cuda_seconds if options.device == "cuda" else cpu_seconds
    results = []
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{options.threads} threads"
    print(f"torch {torch.__version__}, {where}")
    print("parameters  type  kind      ms       GB/s")
    for numel in options.numel:
        for dtype, make, kind, bytes_each in (("fp32", fp32_step, "fused", BYTES_A_PARAMETER),
                                              ("fp32", fp32_step, "foreach", BYTES_A_PARAMETER),
                                              ("bf16", bf16_step, "fused", BYTES_A_PARAMETER),
                                              ("bf16", bf16_step, "foreach", BYTES_A_PARAMETER),
                                              ("fp32", copy_step, "copy", COPY_BYTES)):
            seconds = measure(make(numel, kind, options.device), options.seconds, seconds_of)
            rate = bytes_each * numel / seconds / 1e9
            results.append({"parameters": numel, "type": dtype, "kind": kind, "ms": seconds * 1e3, "GB/s": rate})
            print(f"{numel:10}  {dtype}  {kind:7}  {seconds * 1e3:7.3f}  {rate:6.1f}", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "device": options.device, "threads": options.threads,
                       "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
