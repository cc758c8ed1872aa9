#!/usr/bin/env python3
"""Compares Tessera's fine-tuning with adapters with Hugging Face's PEFT, on equal weights and adapters.

    python3 benchmarks/peers/peft_parity.py [--build build/release]

For GPT-2 and Llama, with adapters on all linear layers and on those that PEFT takes by default: PEFT saves an adapter of
random values, `tessera train` begins with it on 2 ranks at stage 3, and 20 steps have the losses of torch's AdamW,
|a - b| <= 1e-5 * b. The adapters that both end with differ by 1e-4 at most, as a relative Frobenius norm. PEFT loads the
adapter that Tessera exports, and transformers the merged model: their logits are those of PEFT's own, by 1e-5 of the
largest. An adapter that Tessera began itself loads in PEFT, too, and is as PEFT begins one.

    python3 benchmarks/peers/peft_parity.py --golden tests/trainer/golden

writes the small files that the test suite compares with instead; they name the versions that made them.

Needs the packages torch, transformers, safetensors and peft.
"""
import math
import pathlib
import subprocess
import sys
import tempfile

import parity_options
import transformers_parity as parity  # ends the program where a package is missing

try:
    import peft
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)

import json

import safetensors.torch
import torch
import transformers

MOST_LOSS, MOST_ADAPTER, MOST_LOGITS = 1e-5, 1e-4, 1e-5
ALL = {"gpt2": ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"],
       "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}


def adapted(model, rank, alpha, targets):
    """The model with adapters of random values: as they begin, B is 0 and A has no gradient."""
    lora = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM")
    with_adapters = peft.get_peft_model(model, lora)
    with torch.no_grad():
        for name, parameter in with_adapters.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.05 * torch.randn_like(parameter))
    return with_adapters


def adapter_tensors(model):
    return peft.get_peft_model_state_dict(model)


def tessera(build, folder, command, settings, *more):
    (folder / "run.toml").touch()
    line = [build / "bin/tessera", *command, folder / "run.toml", *more]
    for key, value in settings.items():
        line += ["--set", f"{key}={value}"]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)


def train(build, folder, row, more):
    """The losses of `tessera train` from folder/base, and what it exports."""
    (folder / "text").write_bytes(bytes(row.tolist()))  # one sequence long, so both ranks train on it
    tessera(build, folder, ["train"], {
        "model.weights": folder / "base", "precision.parameters": "fp32", "data.train": folder / "text",
        "data.validation_fraction": 0.0, "mesh.shard": 2, "strategy.stage": 3, "schedule.kind": "constant",
        "optimizer.clip": 0.0, "run.sequences": 1, "run.length": len(row) - 1, "run.metrics": folder / "metrics",
        "run.export": folder / "out"} | more)
    return [json.loads(line)["loss"] for line in (folder / "metrics").read_text().splitlines()]


def train_torch(model, row, steps):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = parity.loss_of(model, row)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def further(ours, theirs):
    """The largest difference of two models' tensors, relative to the tensor's norm."""
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    return max((torch.norm(ours[name] - theirs[name]) / torch.norm(theirs[name])).item() for name in theirs)


def logits_further(one, other, row):
    with torch.no_grad():
        a, b = one(row[None]).logits, other(row[None]).logits
    return ((a - b).abs().max() / b.abs().max()).item()


def load_base(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder / "base", attn_implementation="eager")


def compare_training(build, folder, name, row, targets):
    base = load_base(folder)
    model = adapted(base, 4, 8, targets)
    model.save_pretrained(folder / "theirs")
    began = {key: value.clone() for key, value in adapter_tensors(model).items()}
    settings = {"model.adapter": folder / "theirs", "run.steps": parity.STEPS, "run.checkpoint": folder / "runs"}
    ours = train(build, folder, row, settings)
    theirs = train_torch(model, row, parity.STEPS)
    loss = parity.worst_difference(ours, theirs)
    adapters = further(safetensors.torch.load_file(folder / "out/adapter_model.safetensors"), adapter_tensors(model))
    moved = further(began, adapter_tensors(model))
    # The checkpoint, merged into the weights.
    tessera(build, folder, ["checkpoint", "export"],
            {"model.weights": folder / "base", "model.adapter": folder / "theirs", "precision.parameters": "fp32",
             "mesh.shard": 2, "run.length": len(row) - 1}, folder / "runs", folder / "merged", "--merge")
    merged = transformers.AutoModelForCausalLM.from_pretrained(folder / "merged", attn_implementation="eager")
    loaded = peft.PeftModel.from_pretrained(load_base(folder), folder / "out")
    by_peft, by_merge = (logits_further(one, model, row) for one in (loaded, merged))
    print(f"{name}: {parity.STEPS} steps: loss {ours[0]:.6f} -> {ours[-1]:.6f}, largest difference {loss:.1e}; adapters "
          f"moved by {moved:.1e} and differ by {adapters:.1e}; logits by PEFT of our adapter differ by {by_peft:.1e}, of "
          f"the merged model by {by_merge:.1e}")
    return (loss <= MOST_LOSS and adapters <= MOST_ADAPTER and moved > 0.01 and by_peft <= MOST_LOGITS
            and by_merge <= MOST_LOGITS)


def compare_beginning(build, folder, name, row, targets):
    """An adapter that Tessera begins."""
    train(build, folder, row, {"lora.rank": 16, "lora.alpha": 32, "lora.targets": ",".join(targets or []), "run.steps": 1,
                               "schedule.learning_rate": 1e-30, "run.export": folder / "begun"})
    loaded = peft.PeftModel.from_pretrained(load_base(folder), folder / "begun")
    same = logits_further(loaded, load_base(folder), row) == 0.0
    expected = peft.get_peft_model(load_base(folder), peft.LoraConfig(r=16, lora_alpha=32, target_modules=targets))
    ours, theirs = adapter_tensors(loaded), adapter_tensors(expected)
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    good = same
    for key, value in theirs.items():
        # A is uniform in +- 1 / sqrt(inputs), whose deviation is that over sqrt(3). B is 0 but for one step.
        of_a = "lora_A" in key
        bound = 1 / math.sqrt(value.shape[1]) if of_a else 1e-29
        good &= ours[key].shape == value.shape and ours[key].abs().max().item() <= bound
        good &= not of_a or abs(ours[key].std().item() * math.sqrt(3) - bound) <= 0.2 * bound
    print(f"{name}: an adapter of rank 16 as Tessera begins it: {'as PEFT does' if good else 'DIFFERS'}")
    return good


def compare(build, name, config, targets):
    with tempfile.TemporaryDirectory() as text:
        folder = pathlib.Path(text)
        model, tensors = parity.first_step(config, 2, 64, torch.float32)
        model.save_pretrained(folder / "base")
        row = tensors["tokens"][0].long()
        which = f"{name}, {'all linear layers' if targets else 'by default'}"
        good = compare_training(build, folder, which, row, targets)
        return compare_beginning(build, folder, which, row, targets) and good


def write_golden(folder):
    for name, config in parity.configs(parity.SMALL, parity.SMALL_LLAMA).items():
        if name == "llama_tied":
            continue
        base, tensors = parity.first_step(config, 2, 10, torch.bfloat16)
        weights = {key: value for key, value in tensors.items() if not key.endswith(".grad")}
        for parameter in base.parameters():
            parameter.grad = None
        lora = {"rank": 3, "alpha": 6, "targets": ALL[name]}
        model = adapted(base, lora["rank"], lora["alpha"], lora["targets"])
        tokens = weights["tokens"].long()
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        weights |= {"logits": logits.detach(), "loss": loss.detach()[None]}
        gradients = {key.replace(".default.", "."): parameter.grad for key, parameter in model.named_parameters()
                     if parameter.requires_grad}
        for key, value in adapter_tensors(model).items():
            weights |= {key: value.detach(), f"{key}.grad": gradients[key]}
        safetensors.torch.save_file(
            {key: value.contiguous() for key, value in weights.items()}, folder / f"{name}_lora.safetensors",
            {"config": json.dumps(config | {"lora": lora}), "torch": torch.__version__,
             "transformers": transformers.__version__, "peft": peft.__version__})


def main():
    options = parity_options.parse_with_golden(__doc__)
    if options.golden:
        write_golden(options.golden)
        return
    transformers.utils.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}", flush=True)
    good = True
    for name, config in parity.configs(parity.LARGE, parity.LARGE_LLAMA).items():
        for targets in (ALL[config["family"]], None):
            good = compare(options.build, name, config, targets) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
