"""Processes that find each other: those of a namespace, and nobody else."""

import pytest
from helpers.models.bigram_stablehlo import write_experiment
from helpers.servers.processes import Processes, free_port
from helpers.worlds.identities import member

from pcp.errors import UsageError
from pcp.runtime.transport.credentials import Protection
from pcp.runtime.transport.tls import KeyTls
from pcp.tools.cli import main
from pcp.training.wire.discovery import announced, found, tag_of

pytest.importorskip("zeroconf")
OURS, THEIRS = "0a" * 8, "0b" * 8


def test_those_of_a_namespace_find_each_other_and_nobody_else() -> None:
    with announced("127.0.0.1", 4321, OURS), announced("127.0.0.1", 4322, THEIRS):
        assert found(OURS, 20.0) == [("127.0.0.1", 4321)]
        assert found("0c" * 8, 1.0) == []
    assert found(OURS, 1.0) == [], "who has gone is not found"


def test_a_tag_is_of_a_key_or_of_an_issuer(tmp_path) -> None:
    one, other = (Protection(key * 32, KeyTls()) for key in (b"a", b"b"))
    assert tag_of(one) == tag_of(Protection(b"a" * 32, KeyTls()))
    assert tag_of(one) != tag_of(other)
    worker, shepherd = (member(tmp_path, r)[0] for r in ("worker", "shepherd"))
    assert tag_of(Protection(tls=worker)) == tag_of(Protection(tls=shepherd))
    elsewhere = member(tmp_path, "worker", "elsewhere")[0]
    assert tag_of(Protection(tls=worker)) != tag_of(Protection(tls=elsewhere))
    with pytest.raises(UsageError, match="any process could announce itself"):
        tag_of(Protection())


@pytest.mark.slow
def test_four_processes_train_with_nothing_but_a_key(
    tmp_path, monkeypatch, capsys
) -> None:
    """A compiler and five processes; the fifth has another key, and finds nobody."""
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path, outer_loop_steps=40)
    for name in ("run.key", "other.key"):
        (tmp_path / name).write_text(name * 8)
        (tmp_path / name).chmod(0o600)
    key = ("--key-file", "run.key")
    with Processes() as children:
        shepherd = children.start(
            *("pcp.tools.cli", "shepherd", "--config", "x.json", "--announce"),
            *("--workers", 3, "--no-dashboard", "--web", "off", *key),
            *("--port", free_port(), "--run", "run"),
        )
        stranger = children.start(
            *("pcp.tools.cli", "worker", "--discover", "--key-file", "other.key"),
            *("--patience", "20"),
        )
        crew = [
            children.start("pcp.tools.cli", "worker", "--discover", *key)
            for _ in range(3)
        ]
        shepherd.wait_for("round 2/", 180)
        capsys.readouterr()
        assert main(["cluster", *key]) == 0
        assert capsys.readouterr().out.count("worker  ") == 3
        assert main(["cluster", "--key-file", "other.key", "--seconds", "2"]) == 1
        assert [worker.wait(120) for worker in crew] == [0, 0, 0]
        assert shepherd.wait(60) == 0, shepherd.text
        assert stranger.wait(60) == 1
        assert "no shepherd of this namespace was found" in stranger.text
        assert "refused" not in shepherd.text
