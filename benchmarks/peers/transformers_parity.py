#!/usr/bin/env python3
"""Compares Tessera with the transformers library on equal weights.

Builds a small, randomly initialised GPT-2 and Llama, saves them as safetensors, lets `tessera train` start from the
file, and compares the loss of the first step and the norm of its gradient. Then the weights that a run with learning
rate 0 exports must be those that were saved, bit for bit.

    python3 benchmarks/peers/transformers_parity.py build/release/bin/tessera

Needs the packages torch, transformers and safetensors.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    from safetensors.torch import load_file
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
except ImportError as error:
    sys.exit(f"skipped: {error}")

VOCABULARY, LENGTH, LAYERS, HEADS, CHANNELS = 256, 64, 3, 4, 64
TOLERANCE = 1e-5


def gpt2():
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=128, n_embd=CHANNELS, n_layer=LAYERS, n_head=HEADS,
                        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    return GPT2LMHeadModel(config), {"family": "gpt2", "preset": "gpt2-tiny", "context": 128}


def llama(tied):
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=CHANNELS, intermediate_size=160, num_hidden_layers=LAYERS,
                         num_attention_heads=HEADS, num_key_value_heads=2, max_position_embeddings=128,
                         rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=tied)
    return LlamaForCausalLM(config), {"family": "llama", "preset": "llama-tiny", "context": 128, "kv_heads": 2,
                                      "hidden": 160, "norm_epsilon": 1e-5, "rope_theta": 10000.0,
                                      "tied": str(tied).lower()}


def run_tessera(tool, folder, keys, ranks):
    settings = {f"model.{key}": value for key, value in keys.items()}
    settings |= {"model.layers": LAYERS, "model.heads": HEADS, "model.channels": CHANNELS,
                 "model.vocabulary": VOCABULARY, "model.weights": folder / "saved", "precision.parameters": "fp32",
                 "data.train": folder / "text", "data.validation_fraction": 0.0, "mesh.shard": ranks,
                 "strategy.stage": 3, "schedule.kind": "constant", "schedule.learning_rate": 1e-30,
                 "optimizer.weight_decay": 0.0, "run.steps": 1, "run.sequences": 1, "run.length": LENGTH,
                 "run.metrics": folder / "metrics", "run.export": folder / "out.safetensors"}
    (folder / "run.toml").write_text("")
    (folder / "metrics").unlink(missing_ok=True)
    command = [tool, "train", folder / "run.toml"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads((folder / "metrics").read_text().splitlines()[0])


def compare(name, model, keys, tool):
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    tokens = torch.randint(0, VOCABULARY, (LENGTH + 1,))
    logits = model(tokens[None, :-1]).logits[0]
    loss = torch.nn.functional.cross_entropy(logits, tokens[1:])
    loss.backward()
    norm = torch.sqrt(sum(p.grad.double().square().sum() for p in model.parameters()))
    good = True
    with tempfile.TemporaryDirectory() as text:
        folder = pathlib.Path(text)
        model.save_pretrained(folder / "saved", safe_serialization=True)
        (folder / "text").write_bytes(bytes(tokens.tolist()))
        saved = load_file(folder / "saved" / "model.safetensors")
        for ranks in (1, 2):
            line = run_tessera(tool, folder, keys, ranks)
            for what, ours, theirs in (("loss", line["loss"], loss.item()),
                                       ("gradient norm", line["gradient_norm"], norm.item())):
                error = abs(ours - theirs) / abs(theirs)
                good &= error <= TOLERANCE
                print(f"{name:12} {ranks} ranks  {what:14} tessera {ours:.8f}  transformers {theirs:.8f}  "
                      f"difference {error:.1e}")
            exported = load_file(folder / "out.safetensors")
            same = exported.keys() == saved.keys() and all(torch.equal(exported[key], saved[key]) for key in saved)
            good &= same
            print(f"{name:12} {ranks} ranks  weights        {'equal, bit for bit' if same else 'DIFFER'}")
    return good


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    results = [compare("gpt2", *gpt2(), sys.argv[1]), compare("llama", *llama(False), sys.argv[1]),
               compare("llama tied", *llama(True), sys.argv[1])]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
