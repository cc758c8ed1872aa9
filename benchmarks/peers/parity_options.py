"""The command line of the scripts that compare Tessera with a peer: `<peer>_parity.py`."""
import argparse
import pathlib


def make_parser(description):
    """A parser with --build; `description` is the script's own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default="build/release", help="where Tessera was built")
    return parser


def parse_with_golden(description):
    """The options of a script that can also write the test suite's files: build and golden."""
    parser = make_parser(description)
    parser.add_argument("--golden", type=pathlib.Path, help="write the test suite's files into this folder")
    return parser.parse_args()
