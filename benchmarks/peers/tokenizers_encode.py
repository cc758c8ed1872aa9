#!/usr/bin/env python3
"""Encodes and decodes a text by the tokenizers library, on one thread, as bench_tokenizer does.
Time is that of the CPU: others may use the machine.

    pip install tokenizers==0.23.3
    python3 benchmarks/peers/tokenizers_encode.py tokenizer.json text.txt
"""
import os
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer  # noqa: E402


def pieces_of(text):
    """Whole lines, of 4096 bytes or a little more."""
    pieces, piece, size = [], [], 0
    for line in text.split("\n"):
        piece.append(line)
        size += len(line.encode()) + 1
        if size >= 4096:
            pieces.append("\n".join(piece) + "\n")
            piece, size = [], 0
    return pieces + ["\n".join(piece)]


def main():
    tokenizer = Tokenizer.from_file(sys.argv[1])
    text = open(sys.argv[2], encoding="utf-8", errors="replace", newline="").read()
    megabytes = len(text.encode()) / 1e6
    pieces = pieces_of(text)
    best = {"encode": 0.0, "encode_batch_fast": 0.0, "encode_pieces": 0.0, "decode": 0.0}
    for _ in range(3):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        for name, run in (
            ("encode", lambda: tokenizer.encode(text, add_special_tokens=False)),
            ("encode_batch_fast", lambda: tokenizer.encode_batch_fast([text], add_special_tokens=False)),
            ("encode_pieces", lambda: tokenizer.encode_batch_fast(pieces, add_special_tokens=False)),
            ("decode", lambda: tokenizer.decode(ids, skip_special_tokens=False)),
        ):
            start = time.process_time()
            run()
            best[name] = max(best[name], megabytes / (time.process_time() - start))
    print(len(ids), "tokens;", ", ".join(f"{name} {speed:.2f} MB/s" for name, speed in best.items()))


if __name__ == "__main__":
    main()
