#!/usr/bin/env python3
"""Times gloo's collectives, through torch.distributed, between processes of this machine.

    python3 benchmarks/peers/gloo_collectives.py [--processes 2] [--json FILE]

bytes: of the whole fp32 tensor that is gathered, or reduced before it is scattered. A time is the median over the
repetitions of the slowest process, without the barrier before each. Where gloo has no reduce_scatter the line says so
and times what a user would do instead: all_reduce, of which each process keeps its part.

Needs the package torch.
"""
import argparse
import json
import statistics
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)


def all_gather(whole, part):
    dist.all_gather_into_tensor(whole, part)


def reduce_scatter(whole, part):
    dist.reduce_scatter_tensor(part, whole)


def all_reduce(whole, part):
    dist.all_reduce(whole)
    part.copy_(whole.chunk(dist.get_world_size())[dist.get_rank()])


def has_reduce_scatter():
    try:
        reduce_scatter(torch.ones(dist.get_world_size()), torch.empty(1))
        return True
    except (RuntimeError, NotImplementedError):
        return False


def measure(collective, numel, budget_seconds):
    whole = torch.ones(numel)
    part = torch.ones(numel // dist.get_world_size())
    times, slowest = [], torch.zeros(1, dtype=torch.float64)
    begin_all = time.perf_counter()
    for repetition in range(500):
        dist.barrier()
        begin = time.perf_counter()
        collective(whole, part)
        slowest[0] = time.perf_counter() - begin
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if repetition >= 2:  # the first allocate
            times.append(slowest.item())
        spent = torch.tensor([time.perf_counter() - begin_all])
        dist.broadcast(spent, 0)
        if len(times) >= 5 and spent.item() > budget_seconds:
            break
        whole.fill_(1.0)  # all_reduce would grow without end
    return statistics.median(times)


def run_process(rank, options, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank,
                            world_size=options.processes)
    scatter = ("reduce_scatter", reduce_scatter) if has_reduce_scatter() else ("all_reduce, part kept", all_reduce)
    results = []
    for name, collective in (("all_gather", all_gather), scatter):
        for exponent in range(10, 29, 3 if options.quick else 1):
            seconds = measure(collective, 2**exponent // 4, options.seconds)
            results.append({"collective": name, "bytes": 2**exponent, "us": seconds * 1e6})
            if rank == 0:
                print(f"{name:22}  {2**exponent:10}  {seconds * 1e6:11.1f}  {2**exponent / seconds / 1e9:7.2f}",
                      flush=True)
    if rank == 0 and options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "processes": options.processes, "results": results}, file, indent=1)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2, help="a power of two")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line, about")
    parser.add_argument("--quick", action="store_true", help="every third size only")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {options.processes} processes")
    print("collective                   bytes           us     GB/s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_process, (options, folder), options.processes)


if __name__ == "__main__":
    main()
