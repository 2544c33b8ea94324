"""What encoding and decoding cost, beside a copy of the same array.

    python benchmarks/codecs.py [--names int8 e3m0 ...] [--mib 64] [--rounds 5]

One thread, an array that fits no cache, in segments as a compressed all-reduce takes
them, in turns with the copy. Prints medians: milliseconds, and how many copies of the
array that is.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pcp.runtime.collectives.compressed_reduce import SEGMENT
from pcp.runtime.compression.codecs import Codec, codec

NAMES = ("fp16", "bf16", "fp8", "int8", "int8zp", "e3m0", "int2", "topk", "randomk")
Array = NDArray[np.float32]


def main() -> None:
    """A line for each codec."""
    parser = argparse.ArgumentParser(description="Codecs beside a copy.")
    parser.add_argument("--names", nargs="+", default=NAMES)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    values = np.random.default_rng(0).standard_normal(flags.mib << 18)
    values = values.astype(np.float32)
    print("codec       bits   encode ms  copies   decode ms  copies")
    for name in flags.names:
        how = codec(name)
        copied, encoded, decoded = times(how, values, flags.rounds)
        bits = 8 * how.wire_bytes(values.size) / values.size
        print(
            f"{name:10}{bits:6.2f}{encoded:12.1f}{encoded / copied:8.1f}"
            f"{decoded:12.1f}{decoded / copied:8.1f}"
        )


def times(how: Codec, values: Array, rounds: int) -> NDArray[np.float64]:
    """Milliseconds: of a copy, of encoding, of decoding."""
    out, wires = np.empty_like(values), list[NDArray[np.uint8]]()
    parts = [slice(i, i + SEGMENT) for i in range(0, values.size, SEGMENT)]

    def encode() -> None:
        wires[:] = [how.encode(values[part]) for part in parts]

    def decode() -> None:
        for part, wire in zip(parts, wires, strict=True):
            how.decode_into(out[part], wire)

    turns = (lambda: np.copyto(out, values), encode, decode)
    found = [[_milliseconds(work) for work in turns] for _ in range(rounds)]
    return np.median(found, axis=0)


def _milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - began)


if __name__ == "__main__":
    main()
