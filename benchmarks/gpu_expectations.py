#!/usr/bin/env python3
"""What a training step should take on a GPU, op by op, from bytes, operations and nominal rates. A page of computed
expectations, which no GPU has shown: to be laid beside the first run (scripts/gpu_check.sh).

    python3 benchmarks/gpu_expectations.py TOOL --date DATE >benchmarks/results/DATE-gpu-expectations.md

TOOL is a tessera that plans for GPUs: of a build with CUDA, or emulated_tessera of a build without. Memory is its plan's,
operations of the model are its simulation's; the ops, their bytes and launches are the tables below, from src/nn and
kernels/cuda. Needs no package and no GPU.
"""
import argparse
import json
import math
import pathlib
import subprocess
import tempfile
import textwrap

# Nominal rates of NVIDIA's data sheets, "H100 Tensor Core GPU" and "H200 Tensor Core GPU", the SXM columns
# (nvidia.com/en-us/data-center/h100 and /h200): bf16 without sparsity is half of what they say (1,979 TFLOP/s with it).
GPUS = {
    "H100 SXM": {"tflops": 1979 / 2, "tb": 3.35, "memory": 80e9},
    "H200": {"tflops": 1979 / 2, "tb": 4.8, "memory": 141e9},
}
# What of the nominal rates is assumed to be reached. Nobody has measured them with Tessera.
PRODUCT, ATTENTION, MEMORY, GAP_US = 0.70, 0.45, 0.80, 1.0
ROOM = 0.8  # of the memory, for the plan of a model whose layers are chosen: as tests/cli/gpu_train.sh

MODELS = {
    "gpt2-124m": {"config": "gpt2_step.toml", "layers": 12, "channels": 768, "hidden": 3072, "vocabulary": 50257,
                  "sequences": 8, "length": 1024},
    "llama-7b": {"config": "llama_step.toml", "layers": 32, "channels": 4096, "hidden": 11008, "vocabulary": 32000,
                 "sequences": 4, "length": 2048},
}
BF16, FP32, UPDATED_BYTES, SORT_TILE = 2, 4, 28, 2048


class Op:
    """Calls of a step: operations and bytes of one, and what bounds them."""

    def __init__(self, name, calls, launches, flops=0.0, bytes_=0.0, reached=MEMORY):
        self.name, self.calls, self.launches = name, calls, launches
        self.flops, self.bytes, self.reached = calls * flops, calls * bytes_, reached

    def limit_us(self, gpu):
        return max(self.flops / gpu["tflops"] / 1e6, self.bytes / gpu["tb"] / 1e6)

    def expected_us(self, gpu):
        return max(self.flops / gpu["tflops"] / 1e6 / self.reached, self.bytes / gpu["tb"] / 1e6 / MEMORY)


def product(name, calls, m, n, k, output=BF16):
    return Op(name, calls, 1, 2.0 * m * n * k, BF16 * (m * k + n * k) + output * m * n, PRODUCT)


def moved(name, calls, launches, numel):
    """An op that moves so many elements of bf16."""
    return Op(name, calls, launches, bytes_=BF16 * numel)


def linear(name, calls, rows, inputs, outputs, bias, forward):
    """A layer's products; `forward` times the forward one. A bias is added by the product; its gradient is a column sum."""
    ops = [product(f"{name}: forward", calls * forward, rows, outputs, inputs),
           product(f"{name}: gradients of weight and input", 2 * calls, rows, inputs, outputs)]
    return ops + ([moved(f"{name}: gradient of bias", calls, 2, rows * outputs)] if bias else [])


def attention(calls, model, forward):
    rows, channels = model["sequences"] * model["length"], model["channels"]
    pairs = 2.0 * rows * (model["length"] + 1) / 2 * channels  # of one product of queries with the keys before them
    return [Op("attention: forward", calls * forward, 1, 2 * pairs, BF16 * 4 * rows * channels, ATTENTION),
            Op("attention: backward", calls, 3, 5 * pairs, BF16 * 8 * rows * channels, ATTENTION)]


def sort_launches(rows):
    """Of kernels/cuda/embedding.cu: tiles, and for each longer run its steps across tiles and one within."""
    longer = max(0, math.ceil(math.log2(rows)) - int(math.log2(SORT_TILE)))
    return 1 + longer * (longer + 1) // 2 + longer


def around(model, positions, chunks, parameters):
    """Embedding, head, and what is done once."""
    rows, channels, vocabulary = model["sequences"] * model["length"], model["channels"], model["vocabulary"]
    units = model["layers"] + 2
    logits = rows * vocabulary
    return [
        moved("embedding: forward", 1, 1, 2 * rows * channels),
        Op("embedding: gradient", 1, 2 + sort_launches(rows) + (1 if positions else 0),
           bytes_=BF16 * channels * ((2 if positions else 1) * rows + vocabulary)),
        moved("head: norm and its gradient", 1, 3, 5 * rows * channels),
        Op("head: logits", chunks, 1, 2.0 * logits * channels / chunks,
           (FP32 * logits + BF16 * rows * channels) / chunks + BF16 * vocabulary * channels, PRODUCT),
        Op("head: softmax and its gradient", chunks, 1, bytes_=(FP32 + BF16) * logits / chunks),
        Op("head: gradients of weight and input", 2 * chunks, 1, 2.0 * logits * channels / chunks,
           BF16 * (logits + rows * channels) / chunks + 2 * BF16 * vocabulary * channels, PRODUCT),
        Op("squares of gradients", units, 1, bytes_=BF16 * parameters / units),
        Op("AdamW", units, 1, bytes_=UPDATED_BYTES * parameters / units),
        Op("loss, decision", 1, 3),
    ]


def gpt2(model, parameters):
    """No dropout, nothing recomputed; logits in chunks of 2048 rows, the default of the head."""
    rows, channels, hidden, layers = model["sequences"] * model["length"], model["channels"], model["hidden"], model["layers"]
    stream = rows * channels
    return [
        moved("norms: forward", 2 * layers, 1, 3 * stream),  # 2 of the first, 4 of the second, which adds the residual
        moved("norms: backward", 2 * layers, 2, 4 * stream),
        *linear("qkv", layers, rows, channels, 3 * channels, True, 1),
        *attention(layers, model, 1),
        *linear("projection", layers, rows, channels, channels, True, 1),
        *linear("up", layers, rows, channels, hidden, True, 1),
        moved("GELU: forward", layers, 1, 2 * rows * hidden),
        moved("GELU: backward", layers, 1, 3 * rows * hidden),
        *linear("down", layers, rows, hidden, channels, True, 1),
        moved("residual", layers, 1, 3 * stream),
        *around(model, True, 4, parameters),
    ]


def llama(model, parameters):
    """Each block's forward runs twice, but for its last product and addition."""
    rows, channels, hidden, layers = model["sequences"] * model["length"], model["channels"], model["hidden"], model["layers"]
    stream = rows * channels
    return [
        moved("norms: forward", 4 * layers, 1, 3 * stream),
        moved("norms: backward", 2 * layers, 2, 4 * stream),
        *linear("qkv", layers, rows, channels, 3 * channels, False, 2),
        moved("rotary", 3 * layers, 2, 4 * stream),
        *attention(layers, model, 2),
        *linear("projection", layers, rows, channels, channels, False, 2),
        *linear("gate and up", layers, rows, channels, 2 * hidden, False, 2),
        moved("SwiGLU: forward", 2 * layers, 1, 3 * rows * hidden),
        moved("SwiGLU: backward", layers, 1, 5 * rows * hidden),
        *linear("down", layers, rows, hidden, channels, False, 1),
        moved("residual", layers, 1, 3 * stream),
        *around(model, False, 1, parameters),
    ]


class Tool:
    def __init__(self, path, folder):
        self.path, self.folder = path, pathlib.Path(folder)
        (self.folder / "text.txt").write_text("a line of a text that is trained on\n" * 4096, encoding="utf-8")

    def result(self, command, name, layers, *arguments):
        model = MODELS[name]
        out = self.folder / "out.json"
        config = pathlib.Path(__file__).parent / "peers" / model["config"]
        settings = {"model.preset": name, "model.layers": layers, "run.sequences": model["sequences"],
                    "run.length": model["length"], "run.device": "cuda", "precision.parameters": "bf16",
                    "data.train": self.folder / "text.txt"}
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        subprocess.run([self.path, command, config, *words, *arguments, "--json", out], check=True,
                       stdout=subprocess.DEVNULL)
        return json.loads(out.read_text(encoding="utf-8"))

    def plan(self, name, layers):
        return self.result("plan", name, layers)

    def step_flops(self, name, layers):
        """Of the model, as its utilisation counts them: without what is made again."""
        simulated = self.result("simulate", name, layers, "--gflops", "1000", "--peak-gflops", "1000")
        return simulated["model_flops_utilisation"] * simulated["total_us"] * 1e6


def planned_bytes(plan):
    return plan["predicted"]["arena_bytes"]


def fitting_layers(tool, name, gpu):
    """The most layers whose plan has room."""
    return next(layers for layers in range(MODELS[name]["layers"], 0, -1)
                if planned_bytes(tool.plan(name, layers)) <= ROOM * gpu["memory"])


def section(tool, name, gpu_name):
    gpu = GPUS[gpu_name]
    layers = fitting_layers(tool, name, gpu)
    model = MODELS[name] | {"layers": layers}
    plan = tool.plan(name, layers)
    ops = (gpt2 if name.startswith("gpt2") else llama)(model, plan["parameter_numel"])
    launches = sum(op.calls * op.launches for op in ops)
    gaps_ms = launches * GAP_US / 1e3
    limit_ms = sum(op.limit_us(gpu) for op in ops) / 1e3
    expected_ms = sum(op.expected_us(gpu) for op in ops) / 1e3 + gaps_ms
    tokens = model["sequences"] * model["length"]
    flops = tool.step_flops(name, layers)
    of = "" if layers == MODELS[name]["layers"] else f", {layers} of {MODELS[name]['layers']} layers"
    lines = [f"## {name}{of}, on an {gpu_name}", "",
             f"{plan['parameter_numel']:,} parameters in bf16, {model['sequences']} × {model['length']} tokens a step"
             f"{', each block recomputed' if name.startswith('llama') else ''}.", "",
             "| op | calls | launches | TFLOP | GB | at the nominal rates, ms | expected, ms |",
             "|---|---|---|---|---|---|---|"]
    for op in ops:
        lines.append(f"| {op.name} | {op.calls} | {op.calls * op.launches} | {op.flops / 1e12:.3f} | {op.bytes / 1e9:.3f} | "
                     f"{op.limit_us(gpu) / 1e3:.3f} | {op.expected_us(gpu) / 1e3:.3f} |")
    lines += [f"| between launches | | | | | | {gaps_ms:.3f} |",
              f"| **step** | | **{launches}** | {sum(op.flops for op in ops) / 1e12:.2f} | "
              f"{sum(op.bytes for op in ops) / 1e9:.1f} | **{limit_ms:.2f}** | **{expected_ms:.2f}** |", "",
              "| | at the nominal rates | expected |", "|---|---|---|",
              f"| tokens/s | {tokens / limit_ms * 1e3:,.0f} | {tokens / expected_ms * 1e3:,.0f} |",
              f"| MFU ({flops / 1e12:.2f} TFLOP of the model a step) | {flops / limit_ms / gpu['tflops'] / 1e9:.3f} | "
              f"{flops / expected_ms / gpu['tflops'] / 1e9:.3f} |",
              f"| memory, planned | {planned_bytes(plan) / 2**30:.2f} GiB | |", ""]
    return lines


def wrapped(text):
    return textwrap.wrap(text, 125, break_long_words=False, break_on_hyphens=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("--date", required=True)
    options = parser.parse_args()
    lines = [f"# Steps on GPUs, expected, {options.date}", "", *wrapped(
        "**Computed. No GPU has shown any of these figures.** They are what a step should take by its bytes, its operations "
        "and the data sheets' rates, to be laid beside the first run of `scripts/gpu_check.sh`. TOOL is a `tessera` with CUDA, "
        "or `build/release/tests/emulated_cuda/emulated_tessera` without."), "", "```sh",
             f"python3 benchmarks/gpu_expectations.py TOOL --date {options.date}", "```", "",
             "| GPU | bf16, dense | memory | source |", "|---|---|---|---|"]
    for name, gpu in GPUS.items():
        lines.append(f"| {name} | {gpu['tflops']:.1f} TFLOP/s | {gpu['memory'] / 1e9:.0f} GB at {gpu['tb']} TB/s | NVIDIA's data "
                     f"sheet, \"{name.split()[0]} Tensor Core GPU\"; bf16 is half of its 1,979 TFLOP/s with sparsity |")
    lines += ["", *wrapped(
        f"*At the nominal rates* is the longer of operations over the rate of bf16 and bytes over the memory's rate, op by op. "
        f"*Expected* assumes that products reach {PRODUCT:.2f} of that rate, attention {ATTENTION:.2f}, and memory "
        f"{MEMORY:.2f}, and that {GAP_US:g} µs pass between two kernels, which are nodes of one CUDA graph from a run's third "
        "step on. These four are assumptions."), "", *wrapped(
        "Bytes are what an op must read and write once. Caches are left out: tensors of gpt2-124m are smaller than a GPU's "
        "second-level cache, so that what is bound by memory may take less there. A product of cuBLASLt is counted as one launch, "
        "and cuDNN's attention as Tessera's own, one launch forward and three backward. With these the tables' launches are those "
        "that the emulation makes, where a debugger counted them for models of two layers: 89 a step of a GPT-2, 98 of a "
        "recomputing Llama."), "", *wrapped(
        f"A model has the most layers whose plan takes at most {ROOM} of the GPU's memory, as in `tests/cli/gpu_train.sh`. MFU "
        "counts the model's operations as `tessera train` does, without what is made again."), ""]
    with tempfile.TemporaryDirectory() as folder:
        tool = Tool(options.tool, folder)
        for model in MODELS:
            for gpu in GPUS:
                lines += section(tool, model, gpu)
    print("\n".join(lines).rstrip())


if __name__ == "__main__":
    main()
