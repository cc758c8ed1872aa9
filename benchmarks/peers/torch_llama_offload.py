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
import os
import resource
import sys
import tempfile

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    from torch_llama import Llama, dimensions_of, parse, parser_of, report, result_of, timed_steps
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)


def make_model(options):
    torch.manual_seed(1)
    with torch.device("meta"):
        model = Llama(*dimensions_of(options))
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


def main():
    parser = parser_of(__doc__, "llama-8b", warmup=2, steps=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the optimizer")
    options = parse(parser)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        # gloo, too: the norm is of gradients on the host.
        dist.init_process_group("cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo",
                                init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        model = make_model(options)
        seconds, losses = timed_steps(model, options, autocast=False)
        result = result_of(options, model, seconds) | {"losses": losses}
        dist.destroy_process_group()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    report(result | {"process_bytes": resident},
           ([("threads", f"{options.threads:7}")], [("process GiB", f"{resident / 2**30:11.1f}")]))


if __name__ == "__main__":
    main()
