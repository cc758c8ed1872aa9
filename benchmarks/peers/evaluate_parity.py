#!/usr/bin/env python3
"""Compares `tessera evaluate` with Hugging Face's transformers on equal weights and tokenizers.

    python3 benchmarks/peers/evaluate_parity.py [--build build/release]

Makes randomly initialised models with a tokenizer each (GPT-2; Llama, whose tokenizer puts <s> in front of a text).
Loss and perplexity of texts, by windows that overlap and that do not, and the log-likelihoods of multiple-choice
questions, encoded as EleutherAI's lm-evaluation-harness does it, must be those that torch computes: |a - b| <= 1e-5 * b,
on 1 and on 3 ranks.

    python3 benchmarks/peers/evaluate_parity.py --golden tests/cli/golden

writes the small files that the test suite compares with instead.

Needs the packages torch, transformers and safetensors.
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import parity_options

try:
    import tokenizers
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)

CONTEXT = 48
MOST = 1e-5  # relative difference
WORDS = ("the quick brown fox jumps over a lazy dog while 42 owls, half asleep, watch the river's “slow” water; "
         "naïve readers count them twice: once by day and once by night. ").split(" ")


def some_text(words, seed):
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(0, len(WORDS), (words,), generator=generator)
    return " ".join(WORDS[k] for k in picks.tolist())


def questions(seed, count=12):
    made = []
    for k in range(count):
        long = 120 if k == 3 else 6 + k % 5  # one context is longer than the model's
        choices = [some_text(1 + (k + c) % 4, seed + 10 * k + c) or "a" for c in range(2 + k % 3)]
        choices = [choice.strip() or "none" for choice in choices]
        context = some_text(long, seed + 1000 + k) + ("  " if k == 5 else "")  # blanks that go to the choice
        index = k % len(choices)
        unique = choices.count(choices[index]) == 1
        made.append({"context": context, "choices": choices, "answer": choices[index] if k % 2 and unique else index})
    return made


def make_tokenizer(begins):
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.train_from_iterator([some_text(2000, 5)], tokenizers.trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|endoftext|>", "<s>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    if begins:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))])
    return made


def make_model(family):
    torch.manual_seed(1)
    if family == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=320, n_positions=CONTEXT, n_embd=24, n_layer=2, n_head=3, attn_pdrop=0.0, embd_pdrop=0.0,
            resid_pdrop=0.0, bos_token_id=0, eos_token_id=0, attn_implementation="eager"))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=320, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=CONTEXT, tie_word_embeddings=False,
            attn_implementation="eager"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


@torch.no_grad()
def losses_of(model, tokens):
    """-ln p of every token but the first."""
    tokens = torch.tensor(tokens)
    logits = model(tokens[None, :-1]).logits[0].double()
    return torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none").tolist()


def measure_text(model, tokenizer, text, stride):
    tokens = tokenizer.encode(text).ids
    losses, begin, counted = [], 0, 0
    while counted < len(tokens) - 1:
        end = min(begin + CONTEXT, len(tokens) - 1)
        losses += losses_of(model, tokens[begin:end + 1])[counted - begin:]
        begin, counted = begin + stride, end
    mean = sum(losses) / len(losses)
    return {"counted": len(losses), "loss": mean, "perplexity": math.exp(mean),
            "bits_per_byte": sum(losses) / math.log(2) / len(text.encode())}


def measure_question(model, tokenizer, question):
    """Log-likelihoods of the choices: lm-evaluation-harness's _encode_pair, and its cut from the left."""
    made = []
    for choice in question["choices"]:
        context, continuation = question["context"], " " + choice
        blanks = len(context) - len(context.rstrip())
        if blanks > 0:
            continuation, context = context[-blanks:] + continuation, context[:-blanks]
        whole, alone = tokenizer.encode(context + continuation).ids, tokenizer.encode(context).ids
        of_choice = len(whole) - len(alone)
        made.append(-sum(losses_of(model, whole[-(CONTEXT + 1):])[-of_choice:]))
    return made


def accuracies(asked, likelihoods):
    plain = normalised = 0
    for question, scores in zip(asked, likelihoods, strict=True):
        answer = question["answer"]
        answer = question["choices"].index(answer) if isinstance(answer, str) else answer
        per_byte = [score / len(choice.encode()) for score, choice in zip(scores, question["choices"], strict=True)]
        plain += scores.index(max(scores)) == answer
        normalised += per_byte.index(max(per_byte)) == answer
    return plain / len(asked), normalised / len(asked)


def make(folder, family):
    """A model's folder with files to evaluate, and what torch computes of them."""
    model, tokenizer = make_model(family), make_tokenizer(family == "llama")
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    text = some_text(300, 77)
    lines = [some_text(4 + 9 * k, 300 + k) for k in range(9)]
    asked = questions(900)
    (folder / "text.txt").write_text(text)
    (folder / "lines.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    (folder / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    likelihoods = [measure_question(model, tokenizer, one) for one in asked]
    plain, normalised = accuracies(asked, likelihoods)
    of_lines = [measure_text(model, tokenizer, line, CONTEXT) for line in lines]
    counted = sum(one["counted"] for one in of_lines)
    return {"text": measure_text(model, tokenizer, text, CONTEXT),
            "text_stride_10": measure_text(model, tokenizer, text, 10),
            "lines": {"counted": counted, "loss": sum(one["loss"] * one["counted"] for one in of_lines) / counted},
            "log_likelihoods": likelihoods, "accuracy": plain, "accuracy_normalised": normalised,
            "torch": torch.__version__, "transformers": transformers.__version__}


def run(tool, folder, *arguments):
    result = folder / "result.json"
    subprocess.run([tool, "evaluate", "--weights", folder, "--json", result, *map(str, arguments)], check=True,
                   stdout=subprocess.DEVNULL)
    return json.loads(result.read_text())


def difference(ours, theirs):
    if isinstance(theirs, list):
        return max(map(difference, ours, theirs))
    return abs(ours - theirs) / abs(theirs)


def compare(tool, family):
    with tempfile.TemporaryDirectory() as text:
        folder = pathlib.Path(text)
        theirs = make(folder, family)
        worst = 0.0
        for ranks in (1, 3):
            more = ["--ranks", ranks]
            for key, arguments in {"text": ["text.txt"], "text_stride_10": ["text.txt", "--stride", 10],
                                   "lines": ["lines.jsonl"]}.items():
                ours = run(tool, folder, folder / arguments[0], *arguments[1:], *more)["all"]
                worst = max(worst, *(difference(ours[one], theirs[key][one]) for one in theirs[key]))
            (ours,) = run(tool, folder, folder / "questions.jsonl", "--choices", *more)["files"]
            worst = max(worst, difference(ours["log_likelihoods"], theirs["log_likelihoods"]))
            same = all(ours[key] == theirs[key] for key in ("accuracy", "accuracy_normalised"))
            print(f"{family}, {ranks} ranks: loss {theirs['text']['loss']:.6f}, largest difference {worst:.1e}; accuracies "
                  f"{'equal' if same else 'DIFFER'}")
            if worst > MOST or not same:
                return False
        return True


def main():
    options = parity_options.parse_with_golden(__doc__)
    if options.golden:
        for family in ("gpt2", "llama"):
            folder = options.golden / f"evaluate_{family}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "expected.json").write_text(json.dumps(make(folder, family), indent=1) + "\n")
            (folder / "generation_config.json").unlink(missing_ok=True)
        return
    print(f"torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    results = [compare(options.build / "bin/tessera", family) for family in ("gpt2", "llama")]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
