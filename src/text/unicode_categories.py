#!/usr/bin/env python3
"""Writes unicode_categories.inc, the general category of every code point in Unicode 16.0.

    pip install unicodedata2==16.0.0
    python3 src/text/unicode_categories.py                 writes the table
    python3 src/text/unicode_categories.py --compare       compares it with the `tokenizers` library (0.23.3)

Unicode 16.0 is the version of the regular expressions in `tokenizers` 0.21 to 0.23. A newer table would split
text at other places than the models saw in training.
"""
import pathlib
import sys

import unicodedata2

ORDER = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn").split()
CODE_POINTS = range(0x110000)


def categories():
    assert unicodedata2.unidata_version == "16.0.0", unicodedata2.unidata_version
    return [unicodedata2.category(chr(c)) for c in CODE_POINTS]


def fnv1a(values):
    """The hash that tests/text/unicode_test.cpp computes over the category numbers of all code points."""
    total = 0xCBF29CE484222325
    for value in values:
        total = ((total ^ value) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return total


def write(path):
    of = categories()
    starts = [c for c in CODE_POINTS if c == 0 or of[c] != of[c - 1]]
    words = [f"0x{c << 5 | ORDER.index(of[c]):x}," for c in starts]
    lines, line = [], ""
    for word in words:
        if len(line) + len(word) > 118:
            lines.append(line)
            line = ""
        line += word
    lines.append(line)
    head = "// Written by unicode_categories.py from Unicode 16.0: where runs of one category begin, as start << 5 | category.\n"
    path.write_text(head + "\n".join(lines) + "\n")
    print(f"{len(words)} runs, hash {fnv1a(ORDER.index(name) for name in of):#x}")


def members(pattern):
    """The code points that one character of a pattern matches in the library."""
    from tokenizers import Regex, pre_tokenizers

    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    scalars = [c for c in CODE_POINTS if c and not 0xD800 <= c < 0xE000]
    found = set()
    for i in range(0, len(scalars), 4096):
        text = "".join(map(chr, scalars[i : i + 4096]))
        found.update(ord(c) for word, _ in split.pre_tokenize_str(text) for c in word)
    return found


def compare():
    of = categories()
    for name in ORDER + ["L", "M", "N", "P", "S", "Z", "C"]:
        ours = {c for c in CODE_POINTS if c and of[c].startswith(name) and not 0xD800 <= c < 0xE000}
        theirs = members(rf"\p{{{name}}}")
        print(name, len(ours), "equal" if ours == theirs else f"DIFFERS in {len(ours ^ theirs)}")


if __name__ == "__main__":
    compare() if "--compare" in sys.argv else write(pathlib.Path(__file__).parent / "unicode_categories.inc")
