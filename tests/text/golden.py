#!/usr/bin/env python3
"""Writes golden/: small tokenizers of each family, texts, and what the `tokenizers` library makes of them.

    pip install tokenizers==0.23.3
    python3 tests/text/golden.py
"""
import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).parent / "golden"
WORDS = (
    "the quick brown fox jumps over lazy dogs; don't they? We'll see: it's 1234567 or 3.14. "
    "for (int i = 0; i < n; ++i) {\n    sum += values[i];\n}\n\n\treturn sum;  # done\n"
    "Größe straße café naïve résumé Ελληνικά κόσμε Русский текст и слова "
    "日本語のテキスト 中文字符 한국어 문장 العربية نص עברית हिन्दी ไทย 😀👍🏽👩‍👩‍👧 ∑∫≠ "
    "tokenizer training trains trained sharded shard runtime memory step steps model models "
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = [
    "", " ", "  ", "a", " a", "\n", "\r\n\r\n x", "Hello, world! It's 2024; we'll don'T I'VE 'ſ",
    "for (int i = 0; i < 10; ++i) {\n\t\tx[i] += 0x1F;\n    }\n\n\n// done   \n",
    "the  quick   brown\tfox\u00a0jumps\u3000over\u2028lazy\u0085dogs",
    "123 1234 12345678 ²³¹ ½ Ⅷ ٣٤٥ १२३ ④", "日本語のテキスト、中文字符。한국어 문장", "العربية نص مع تشكيلٍ עברית", "हिन्दी ไทยภาษา",
    "😀👍🏽👩‍👩‍👧‍👦🇩🇪 ☃️ 𝒳𝔸 \U0001f468\u200d\U0001f4bb", "cafe\u0301 e\u0323\u0301 \u1e69 s\u0323\u0307 ｶﾞ ﬁ Å \u212b \u0344",
    "\u0301start with a mark", "\u0000\u0001\u001f\u007f\u0080\u009f control", "\ufeffbom \u200b zero \u200d width \ufffd \uffff",
    "<s>Hello</s> <unk> <|endoftext|>x<|endoftext|>", "a <mask> b<mask>c  <mask>  d", "keepword keep wordkeep keep.keep é_keep",
    "tab\t<left>  <right>\n\n x<left> <left>y <right> <right>", "▁under▁▁score ▁ <0x41> <0xE2>", "a-b--c|d||e#f##g==h===i - | #",
    "-", "||", "##x", "x==", "unknown \u16a0\u16a1 \u16a2 runes \U00010400", "𐍈 \U000e0041 \U0010fffd",
    "ſtraße STRASSE İstanbul ΣΑΣ ǅ ʼn", "x" * 60 + " " * 40 + "y" * 70 + "\n" * 12, "the" * 40, "don't " * 9,
    "\u0897\u0d3b\u1ac1 newer \u1c89 marks a\u1ac5\u0323", "http://a.b/c?d=e&f=%20#g user@host.org C:\\dir\\file.txt", "a\u0300\u0316b q\u0307\u0323",
]


def texts():
    """Texts as bytes: those above, some of them broken, and random ones."""
    draw = random.Random(20240801)
    result = [text.encode("utf-8") for text in TEXTS]
    result += [b"\xff", b"a\xc3", b"\xe2\x82", b"\xf0\x9f\x98 \xed\xa0\x80 \xc0\xaf \xf4\x90\x80\x80 \xe0\x80\x80", b"\x80\xbfok\xfe"]
    for _ in range(8):
        broken = bytearray(draw.choice(TEXTS).encode("utf-8"))
        for _ in range(3):
            if broken:
                broken[draw.randrange(len(broken))] = draw.randrange(128, 256)
        result.append(bytes(broken))
    for _ in range(12):
        words = draw.choices(WORDS.split(" ") + ["\n", "  ", "\u0301", "'s", "9"], k=12)
        result.append(draw.choice([" ", "", " "]).join(words).encode("utf-8"))
    return result


def special(*names):
    return [AddedToken(name, special=True, normalized=False) for name in names]


def train(tokenizer, size, alphabet=True, specials=()):
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, special_tokens=list(specials), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [],
    )
    tokenizer.train_from_iterator([WORDS * 3], trainer)
    return tokenizer


def split_bytes(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def gpt2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return train(tokenizer, 420, specials=special("<|endoftext|>"))


def llama3():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = split_bytes(LLAMA3)
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 420)
    tokenizer.add_special_tokens(special("<|begin_of_text|>", "<|endoftext|>"))
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)]),
    ])
    return tokenizer


def qwen():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split_bytes(LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"))
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 380)
    tokenizer.add_special_tokens(special("<|endoftext|>", "<|im_start|>"))
    tokenizer.add_tokens([AddedToken("cafe\u0301", normalized=True), AddedToken("e\u0301_", normalized=False)])
    return tokenizer


def characters(model, size):
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    return train(tokenizer, size, alphabet=False, specials=names)


def only_first_three(tokenizer):
    """Bytes are no added tokens: they were named so that they got ids."""
    file = json.loads(tokenizer.to_str())
    file["added_tokens"] = [token for token in file["added_tokens"] if token["id"] < 3]
    return Tokenizer.from_str(json.dumps(file))


def mistral():
    tokenizer = only_first_three(characters(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True), 520))
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0),
    ])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return tokenizer


def mistral_first():
    """As Mistral's since its third version: metaspace in front of the first piece of a text only, and no normalizer."""
    tokenizer = mistral()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def tekken():
    """Special tokens have the first ids, and words of the vocabulary need no merges."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = split_bytes(TEKKEN)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return train(tokenizer, 420, specials=special("<unk>", "<s>", "</s>", "<|endoftext|>"))


def metaspace():
    tokenizer = only_first_three(characters(models.BPE(unk_token="<unk>"), 560))
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_tokens([
        AddedToken("<mask>", lstrip=True, special=True), AddedToken("<left>", lstrip=True, normalized=False),
        AddedToken("<right>", rstrip=True, normalized=False), AddedToken("keep", single_word=True),
    ])
    return tokenizer


def splits():
    tokenizer = Tokenizer(models.BPE())
    cut = pre_tokenizers.Split
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        cut("-", behavior="merged_with_previous"), cut("|", behavior="removed"), cut("#", behavior="merged_with_next"),
        cut(Regex("="), behavior="contiguous"), cut(Regex(GPT4O), behavior="removed", invert=True),
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True),
    ])
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s{3,}"), " ~ ")])
    train(tokenizer, 380, specials=special("<s>", "</s>"))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return tokenizer


def with_string_merges(text):
    file = json.loads(text)
    file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]
    return json.dumps(file, ensure_ascii=False)


def without_each_seventh_merge(text):
    """Words that no merges make any more, so that ignore_merges shows."""
    file = json.loads(text)
    merges = file["model"]["merges"]
    file["model"]["merges"] = [merge for i, merge in enumerate(merges) if i % 7]
    return json.dumps(file, ensure_ascii=False)


def golden(tokenizer, inputs):
    """Ids with special tokens around. Without, they are `ids` of them behind the first `before`. `plain` are those
    where special tokens are text, if they differ."""
    cases = []
    for data in inputs:
        text = data.decode("utf-8", "replace")
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(text, add_special_tokens=True).ids
        found = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        case = {"around": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                "skipped": tokenizer.decode(ids, skip_special_tokens=True)}
        case["before"] = len(ids) - len(found) and next(i for i in range(3) if ids[i : i + len(found)] == found)
        case["ids"] = len(found)
        if plain != found:
            case["plain"] = plain
        cases.append(case)
    return cases


def decoded_draws(tokenizer):
    """Texts of random ids. Half of them are single bytes, with special tokens between: most are broken UTF-8."""
    draw = random.Random(20261128)
    short = sorted(id for token, id in tokenizer.get_vocab().items() if len(token) == 1 or token.startswith("<0x"))
    added = sorted(tokenizer.get_added_tokens_decoder())
    cases = []
    for k in range(24):
        ids = draw.choices(short if k % 2 else range(tokenizer.get_vocab_size()), k=1 + k % 12)
        if k % 4 == 3:
            ids.insert(len(ids) // 2, draw.choice(added))
        cases.append({"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                      "skipped": tokenizer.decode(ids, skip_special_tokens=True)})
    return cases


def main():
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "sample.txt").write_text(WORDS * 3)
    inputs = texts()
    result = {"texts": [data.hex() for data in inputs], "files": {}, "drawn": {}}
    for make in (gpt2, llama3, qwen, mistral, metaspace, splits, mistral_first, tekken):
        text = make().to_str()
        if make is gpt2:
            text = with_string_merges(text)
        if make in (llama3, tekken):
            text = without_each_seventh_merge(text)
        text = json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
        (FOLDER / f"{make.__name__}.json").write_text(text + "\n")
        result["files"][make.__name__] = golden(Tokenizer.from_str(text), inputs)
        result["drawn"][make.__name__] = decoded_draws(Tokenizer.from_str(text))
    lines = json.dumps(result, separators=(",", ":")).replace("},{", "},\n{")
    (FOLDER / "golden.json").write_text(lines + "\n")


if __name__ == "__main__":
    sys.exit(main())
