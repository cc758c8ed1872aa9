#!/usr/bin/env python3
"""Compares Tessera with Hugging Face's transformers on equal weights, exchanged as safetensors.

    python3 benchmarks/peers/transformers_parity.py [--build build/release]

Makes randomly initialised models (GPT-2; Llama with grouped queries, its head of its own and tied), computes logits,
loss and gradients in fp32, and has the build's transformers_golden compare each tensor: |a - b| <= 1e-5 * max|b|, on 1
and 2 ranks, at stages 0 and 3. Then `tessera train` starts from the model that transformers saved, on 2 ranks at stage
3; its loss must be the same, and the weights it exports at a learning rate of (nearly) 0 those that were saved, bit
for bit. 20 steps from there have the losses of torch's AdamW, |a - b| <= 1e-6 * b. The model is what the saved
config.json says: no key of [model] is given.

    python3 benchmarks/peers/transformers_parity.py --golden tests/trainer/golden

writes the small files that the test suite compares with instead; they name the versions that made them.

Needs the packages torch, transformers and safetensors.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import parity_options

try:
    import safetensors.torch
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)

SMALL = {"vocabulary": 40, "context": 12, "layers": 2, "heads": 3, "channels": 12}
SMALL_LLAMA = {"kv_heads": 1, "hidden": 20}
LARGE = {"vocabulary": 256, "context": 128, "layers": 3, "heads": 4, "channels": 64}
LARGE_LLAMA = {"kv_heads": 2, "hidden": 160}
STEPS = 20
MOST_FURTHER = 1e-6  # of the losses of these steps, relative


def configs(dims, llama):
    """Name -> the keys that transformers_golden and the section [model] of a configuration share."""
    llama = {"family": "llama", "rope_theta": 500.0, "norm_epsilon": 1e-5} | dims | llama
    return {"gpt2": {"family": "gpt2"} | dims, "llama": llama | {"tied": False}, "llama_tied": llama | {"tied": True}}


def make_model(config):
    common = {"vocab_size": config["vocabulary"], "attn_implementation": "eager"}
    if config["family"] == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_positions=config["context"], n_embd=config["channels"], n_layer=config["layers"],
            n_head=config["heads"], attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0,
            **common))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=config["channels"], intermediate_size=config["hidden"], num_hidden_layers=config["layers"],
        num_attention_heads=config["heads"], num_key_value_heads=config["kv_heads"],
        max_position_embeddings=config["context"], rms_norm_eps=config["norm_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]},
        tie_word_embeddings=config["tied"], **common))


def first_step(config, sequences, length, weight_type):
    """A model whose weights are exact in weight_type, and what transformers_golden reads: its first step in fp32."""
    torch.manual_seed(1)
    model = make_model(config)
    with torch.no_grad():  # biases and gains that are not 0 and 1, so that every term matters
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter)).copy_(parameter.to(weight_type))
    tokens = torch.randint(0, config["vocabulary"], (sequences, length + 1))
    logits = model(tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    tensors = {"tokens": tokens.int(), "logits": logits.detach(), "loss": loss.detach()[None]}
    for name, parameter in model.named_parameters():
        tensors |= {name: parameter.detach().to(weight_type), f"{name}.grad": parameter.grad}
    return model, tensors


def save(path, config, tensors):
    safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path,
                                {"config": json.dumps(config), "torch": torch.__version__,
                                 "transformers": transformers.__version__})


def write_golden(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in configs(SMALL, SMALL_LLAMA).items():
        _, tensors = first_step(config, 2, 10, torch.bfloat16)  # bfloat16 weights: smaller files
        save(folder / f"{name}.safetensors", config, tensors)


def train(tool, folder, tokens, more):
    """The losses of `tessera train` from folder/saved, whose config.json gives the model, and the weights it exports."""
    settings = {"model.weights": folder / "saved", "precision.parameters": "fp32", "data.train": folder / "text",
                "data.validation_fraction": 0.0, "mesh.shard": 2, "strategy.stage": 3, "schedule.kind": "constant",
                "optimizer.clip": 0.0, "run.sequences": 1, "run.length": len(tokens) - 1,
                "run.metrics": folder / "metrics", "run.export": folder / "out.safetensors"} | more
    (folder / "run.toml").touch()
    (folder / "text").write_bytes(bytes(tokens.tolist()))  # one sequence long, so both ranks train on it
    command = [tool, "train", folder / "run.toml"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    losses = [json.loads(line)["loss"] for line in (folder / "metrics").read_text().splitlines()]
    return losses, safetensors.torch.load_file(folder / "out.safetensors")


def loss_of(model, row):
    return torch.nn.functional.cross_entropy(model(row[None, :-1]).logits[0], row[1:])


def train_torch(model, row, steps):
    """The losses of torch's AdamW with the tool's defaults."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, row)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def worst_difference(ours, theirs):
    return max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))


def compare(build, name, config):
    with tempfile.TemporaryDirectory() as text:
        folder = pathlib.Path(text)
        model, tensors = first_step(config, 2, 64, torch.float32)
        save(folder / f"{name}.safetensors", config, tensors)
        program = build / "tests/trainer/transformers_golden"
        good = subprocess.run([program, folder / f"{name}.safetensors"], check=False).returncode == 0

        model.save_pretrained(folder / "saved")
        row = tensors["tokens"][0].long()
        expected = loss_of(model, row).item()
        tool = build / "bin/tessera"
        (loss,), weights = train(tool, folder, row, {"run.steps": 1, "schedule.learning_rate": 1e-30,
                                                     "optimizer.weight_decay": 0.0})
        saved = safetensors.torch.load_file(folder / "saved" / "model.safetensors")
        error = abs(loss - expected) / expected
        same = weights.keys() == saved.keys() and all(torch.equal(weights[key], saved[key]) for key in saved)
        print(f"{name}: tessera train: loss {loss:.8f}, transformers {expected:.8f}, difference {error:.1e}; "
              f"weights {'equal, bit for bit' if same else 'DIFFER'}")
        theirs = train_torch(model, row, STEPS)
        ours, _ = train(tool, folder, row, {"run.steps": STEPS})
        further = worst_difference(ours, theirs)
        print(f"{name}: {STEPS} steps: loss {ours[0]:.6f} -> {ours[-1]:.6f}, largest difference {further:.1e}")
        return good and same and error <= 1e-5 and further <= MOST_FURTHER


def main():
    options = parity_options.parse_with_golden(__doc__)
    if options.golden:
        write_golden(options.golden)
        return
    print(f"torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    results = [compare(options.build, name, config) for name, config in configs(LARGE, LARGE_LLAMA).items()]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
