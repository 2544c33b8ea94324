"""Runs that only those take part in who have the key and the certificates."""

from argparse import Namespace

import pytest
from helpers.models.bigram_stablehlo import write_experiment
from helpers.servers.processes import Processes, free_port
from helpers.worlds.certificates import member_tls
from helpers.worlds.communicators import eventually

from pcp.errors import ConfigError, ProtocolError, UsageError
from pcp.runtime import fetch_snapshot
from pcp.tools.cli import main
from pcp.tools.commands.status import ask
from pcp.tools.support.protection import (
    protection,
    protection_arguments,
    require_protection,
)
from pcp.training.storage.ledger import check


def flags(**given) -> Namespace:
    names = ("key_file", "tls_cert", "tls_key", "tls_ca", "tls_revoked")
    return Namespace(**{name: given.get(name) for name in names})


def of(tls) -> dict:
    return {"tls_cert": tls.cert, "tls_key": tls.key, "tls_ca": tls.ca}


def key_file(folder, name, content):
    path = folder / name
    path.write_text(content)
    path.chmod(0o600)
    return path


def test_without_flags_nothing_is_asked_for() -> None:
    assert protection(flags()).options == {"key": None, "tls": None}
    assert protection_arguments(flags()) == []


def test_what_is_wrong_with_the_files_is_said(tmp_path) -> None:
    tls, other = member_tls(), member_tls("another")
    with pytest.raises(UsageError, match="go together"):
        protection(flags(tls_cert=tls.cert))
    with pytest.raises(ConfigError, match=r"--key-file .*none: No such file"):
        protection(flags(key_file=tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"--key-file \S+short: .* at least 16"):
        protection(flags(key_file=key_file(tmp_path, "short", "abc\n")))
    with pytest.raises(ConfigError, match="not a certificate"):
        protection(flags(**of(tls) | {"tls_key": other.key}))


def test_a_key_that_others_may_read_is_none(tmp_path) -> None:
    path = key_file(tmp_path, "key", "the key of this run\n")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others may read this secret"):
        protection(flags(key_file=path))


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "a.host"])
def test_what_others_reach_is_protected_or_said_to_be_open(tmp_path, host) -> None:
    bare = protection(flags())
    with pytest.raises(UsageError, match=r"a listener on .* or say --insecure"):
        require_protection(host, bare, False)
    require_protection(host, bare, True)
    keyed = flags(key_file=key_file(tmp_path, "key", "the key of this run\n"))
    require_protection(host, protection(keyed), False)
    for own in ("127.0.0.1", "::1", "localhost"):
        require_protection(own, bare, False)


def test_identities_are_made_shown_and_revoked(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["keys", "issuer", "run.issuer", "--namespace", "demo"]) == 0
    assert main(["keys", "new", "w.identity"]) == 0
    number = capsys.readouterr().out.split()[-1]
    line = ["keys", "issue", "w.identity", "--issuer", "run.issuer"]
    assert main([*line, "--role", "worker"]) == 0
    assert f"pcp://demo/worker/{number}" in capsys.readouterr().out
    assert main(line) == 2, "a role is asked for"
    assert main(["keys", "show", "w.identity"]) == 0
    assert main(["keys", "revoke", number, "--list", "revoked"]) == 0
    assert (tmp_path / "revoked").read_text() == f"{number}\n"
    files = {"tls_cert": "w.worker.pem", "tls_key": "w.identity"}
    made = flags(**files, tls_ca="run.pem", tls_revoked="revoked")
    assert protection(made).tls is not None


def test_children_get_absolute_paths(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = flags(key_file=key_file(tmp_path, "key", "k" * 20).relative_to(tmp_path))
    assert protection_arguments(given) == ["--key-file", str(tmp_path / "key")]


@pytest.mark.slow  # six processes; test_identities.py has the rule
def test_a_run_is_for_those_who_have_the_key_and_a_certificate(
    tmp_path, monkeypatch, capsys
) -> None:
    """Real processes; strangers are told why, and the run goes on without them."""
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path, outer_loop_steps=6, checkpoint_every=1)
    key = key_file(tmp_path, "key", "the key of this run\n")
    wrong = key_file(tmp_path, "wrong", "the key of another run\n")
    good = flags(key_file=key, **of(member_tls()))
    strangers = {
        "we have shown none": flags(key_file=key),
        "did not sign ours": flags(key_file=key, **of(member_tls("another", "group"))),
        "refuses our proof: another key": flags(key_file=wrong, **of(member_tls())),
        "this group has a key": flags(**of(member_tls())),
    }
    port, words = free_port(), protection_arguments(good)
    worker = ["worker", "--connect", f"127.0.0.1:{port}", "--device", "local-sync"]
    worker += ["--cage", "off"]  # it would be this process's
    with Processes() as children:
        shepherd = children.start(
            *("pcp.tools.cli", "shepherd", "--config", "x.json", "--workers", "2"),
            *("--port", port, "--run", "run", *words),
        )
        shepherd.wait_for("listens on", 60)
        for why, theirs in strangers.items():
            assert main([*worker, *protection_arguments(theirs)]) == 1
            assert why in capsys.readouterr().err
        assert main(["status", "--port", str(port)]) == 1
        assert "start all with the same --key-file" in capsys.readouterr().err

        def members():
            return ask("127.0.0.1", port, 10, protection(good))["workers"]

        def join(name):
            args = ("pcp.tools.cli", *worker, "--name", name, *words)
            workers.append(children.start(*args))
            ready = ["ready"] * len(workers)
            eventually(lambda: [m["state"] for m in members()] == ready, 90)

        workers = []
        assert not members()
        join("a")  # no round begins without the other
        assert main(["control", "pause", "--run", "run", *words]) == 0
        join("b")
        for member in members():
            with pytest.raises(ProtocolError, match="all is encrypted here"):
                fetch_snapshot(member["address"], 10)
        assert main(["control", "resume", "--run", "run", *words]) == 0
        assert shepherd.wait(90) == 0, shepherd.text
        assert [child.wait(30) for child in workers] == [0, 0]
    assert shepherd.text.count(" connected") == 2
    assert check(tmp_path / "run" / "ledger.jsonl").rounds == 6
    assert "checkpoint      none" not in shepherd.text


def test_who_brings_a_key_to_a_run_that_has_none_is_told(
    tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path)
    key = key_file(tmp_path, "key", "the key of this run\n")
    cases = {
        "does not encrypt": flags(key_file=key),
        "does not encrypt:": flags(**of(member_tls())),
    }
    with Processes() as children:
        shepherd = children.start(
            *("pcp.tools.cli", "shepherd", "--config", "x.json", "--port", 0)
        )
        port = shepherd.wait_for("listens on", 60).rpartition(":")[2]
        for why, theirs in cases.items():
            line = ["worker", "--connect", f"127.0.0.1:{port}", "--cage", "off"]
            assert main([*line, *protection_arguments(theirs)]) == 1
            assert why in capsys.readouterr().err
