"""`pcp bench collectives`, as a user calls it, and its numbers."""

import json
from xml.etree import ElementTree

import pytest

from pcp.tools.commands.bench import OPS, main, row


def test_all_operations_among_processes(tmp_path, capsys) -> None:
    rows, picture = tmp_path / "rows.json", tmp_path / "rates.svg"
    argv = ["collectives", "--sizes", "0.01", "0.5", "--rounds", "1", "--op", *OPS]
    argv += ["--streams", "2", "--json", str(rows), "--plot", str(picture)]
    assert main(argv) == 0
    written = json.loads(rows.read_text())
    assert [(r["op"], r["MiB"]) for r in written] == [
        (op, size) for op in OPS for size in (0.01, 0.5)
    ]
    assert all(0 < r["ms"] < 60_000 for r in written)
    root = ElementTree.fromstring(picture.read_text())
    words = {part.text for part in root.iter()}
    assert {f"{op}, pcp" for op in OPS} | {"0.01", "0.5", "MiB"} <= words
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 1 + len(written)
    assert shown[1].split()[:3] == ["all_reduce", "pcp", "0.01"]


@pytest.mark.parametrize(
    ("op", "world", "rate"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("reduce_scatter", 4, 0.75),
        ("all_gather", 4, 3.0),
        ("broadcast", 4, 1.0),
        ("all_to_all", 4, 0.75),
    ],
)
def test_rates_count_what_a_member_sends(op: str, world: int, rate: float) -> None:
    # 125 million bytes in a second are a Gbit/s.
    made = row(op, "pcp", 125e6 / (1 << 20), 1.0, world)
    assert made["Gbit/s"] == pytest.approx(rate)
    assert made["ms"] == 1000.0


@pytest.mark.parametrize(
    "argv",
    [
        ["collectives", "--world", "1"],
        ["collectives", "--rank", "0"],
        ["collectives", "--rank", "2", "--connect", "127.0.0.1:1"],
        ["collectives", "--sizes", "0"],
        ["weather"],
    ],
)
def test_wrong_usage(argv: list[str]) -> None:
    assert main(argv) == 2
