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
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    from torch_llama import PRESETS, Llama, parameter_groups
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)


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
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=1e-5, betas=(0.9, 0.95), fused=True)
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
