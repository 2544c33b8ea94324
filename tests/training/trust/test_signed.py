"""What is signed, by whom: a forged bundle is refused before its code is loaded."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.models.bigram_numpy import BigramTrainer
from helpers.worlds.identities import member
from helpers.worlds.training_runs import Background, experiment, start_shepherd

from pcp.bundle import Bundle, Manifest, Module
from pcp.errors import BundleError, ConfigError, StateMismatch
from pcp.runtime import Endpoint
from pcp.runtime.transport import certificates
from pcp.runtime.transport.credentials import Protection
from pcp.runtime.transport.peer_identity import RevocationList
from pcp.runtime.transport.signatures import Signer, Trust, own_signer
from pcp.signing import BUNDLE, Signature
from pcp.tools.cli import main
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage.ledger import Ledger, read, signers
from pcp.training.storage.run_folder import RunFolder
from pcp.training.trainer import load as loading
from pcp.training.worker.worker import Identity, Worker


def a_bundle(code: bytes = b"native code") -> Bundle:
    """One with a module that no device could run."""
    file = "modules/cpu.vmfb"
    module = Module(file=file, target="cpu", backend="llvm-cpu", driver="local-task")
    manifest = Manifest(mode="forward", functions={}, modules={"cpu": module})
    return Bundle.build(manifest, {"modules/cpu.vmfb": code})


def signer(folder, name: str = "builder") -> Signer:
    path = folder / f"{name}.identity"
    certificates.new_identity(path)
    return Signer(path)


def signed(bundle: Bundle, *by: Signer) -> Bundle:
    for one in by:
        bundle = bundle.signed(one.sign(BUNDLE, bundle.digest))
    return bundle


@pytest.fixture
def loaded(monkeypatch):
    """The bundles that a device was given."""
    given = []
    monkeypatch.setattr(
        loading.BundleTrainer, "load", lambda bundle, *rest: given.append(bundle)
    )
    return given


def load(content: bytes, trust: Trust) -> None:
    loading.load_made(content, "a bundle", "local-sync", "cpu", trust=trust)


def test_signatures_are_kept_and_change_nothing_else(tmp_path) -> None:
    bare, one = a_bundle(), signer(tmp_path)
    both = signed(bare, one, signer(tmp_path, "other"))
    again = Bundle.from_bytes(both.to_bytes())
    assert again == both
    assert again.digest == bare.digest
    assert replace(again, signatures=()).to_bytes() == bare.to_bytes()


def test_a_bundle_runs_only_if_whom_it_was_told_to_trust_has_signed_it(
    tmp_path, loaded
) -> None:
    builder, other = signer(tmp_path), signer(tmp_path, "other")
    trust = Trust(frozenset({builder.id}))
    load(signed(a_bundle(), other, builder).to_bytes(), trust)
    load(a_bundle().to_bytes(), Trust())
    assert len(loaded) == 2
    good = signed(a_bundle(), builder)
    forged = {
        "it is not signed": a_bundle(),
        "not one that was named with --trust": signed(a_bundle(), other),
        "a signature is not of these contents": replace(
            a_bundle(b"other code"), signatures=good.signatures
        ),
    }
    for why, bundle in forged.items():
        with pytest.raises(BundleError, match=why):
            load(bundle.to_bytes(), trust)
    assert len(loaded) == 2, "no byte of them came to a device"
    key = good.signatures[0].model_copy(update={"key": other.sign("x", "y").key})
    with pytest.raises(BundleError, match="not of these contents"):
        load(replace(good, signatures=(key,)).to_bytes(), trust)


def test_pcp_run_runs_what_was_signed_by_whom_it_is_told_to_trust(
    tmp_path, capsys
) -> None:
    builder, other = signer(tmp_path), signer(tmp_path, "other")
    path = tmp_path / "model.pcp"
    command = ["run", str(path), "--inputs", "random:1", "--out", "x.npz"]
    for bundle, said in (
        (a_bundle(), "it is not signed"),
        (signed(a_bundle(), other), "not one that was named with --trust"),
        (signed(a_bundle(), builder), "no function 'main'"),  # it was let in
    ):
        path.write_bytes(bundle.to_bytes())
        assert main([*command, "--trust", builder.id]) == 1
        assert said in capsys.readouterr().err


def test_a_signature_of_another_kind_of_file_is_none(tmp_path) -> None:
    one, bundle = signer(tmp_path), a_bundle()
    wrong = bundle.signed(one.sign("checkpoint", bundle.digest))
    with pytest.raises(BundleError, match="not of these contents"):
        Trust(frozenset({one.id})).check(BUNDLE, bundle.digest, wrong.signatures, "x")


def test_by_default_the_issuers_shepherds_are_trusted_and_nobody_else(
    tmp_path, loaded
) -> None:
    mine, _ = member(tmp_path, "worker", name="mine")
    trust = Trust.of((), mine)

    def by(role: str, name: str, namespace: str = "run", days: float = 1) -> bytes:
        tls, _ = member(tmp_path, role, namespace, name, days)
        made = own_signer(tls)
        assert made is not None
        return signed(a_bundle(), made).to_bytes()

    load(by("shepherd", "good"), trust)
    for why, content in {
        "for the role worker, not shepherd": by("worker", "imposter"),
        "its certificate is not the issuer's": by("shepherd", "far", "elsewhere"),
        "has expired": by("shepherd", "late", days=-0.001),
        "it shows no certificate": signed(a_bundle(), signer(tmp_path)).to_bytes(),
    }.items():
        with pytest.raises(BundleError, match=why):
            load(content, trust)
    tls, number = member(tmp_path, "shepherd", name="stolen")
    stolen, good = own_signer(tls), member(tmp_path, "shepherd", name="lent")[0]
    assert stolen is not None
    bundle = a_bundle()
    made = stolen.sign(BUNDLE, bundle.digest)
    load(bundle.signed(made).to_bytes(), trust)
    with open(tmp_path / "revoked", "a") as file:
        file.write(f"{number}\n")
    with pytest.raises(BundleError, match="is revoked"):
        load(bundle.signed(made).to_bytes(), trust)
    lent = Path(good.cert).read_text()
    own = signer(tmp_path, "thief").sign(BUNDLE, bundle.digest)
    thief = Signature(**own.model_dump() | {"certificate": lent})
    with pytest.raises(BundleError, match="of another key"):
        load(bundle.signed(thief).to_bytes(), trust)
    assert len(loaded) == 2
    assert Trust(frozenset({number}), revoked=RevocationList(tmp_path / "revoked")).asks


def start(port: int, name: str, protected: Protection) -> Background[str]:
    """A worker in a thread."""
    worker = Worker(
        Identity(name=name, host="127.0.0.1", port=port),
        Endpoint.listen("127.0.0.1:0", **protected.options),
        lambda content: BigramTrainer(0.0),
        lambda text: None,
        protection=protected,
    )
    return Background(worker.run)


def a_run(folder, protection: Protection, rounds: int = 3, **more):
    exp = experiment(folder, outer_loop_steps=rounds, checkpoint_every=1)
    where = RunFolder.at(folder / "run", exp)
    shepherd, watcher, thread = start_shepherd(
        exp, where, workers=1, protection=protection, **more
    )
    shepherd.state.grace = 0.3  # of a run that goes on, its new worker has no state
    tls, _ = member(folder, "worker", name=f"of {rounds}")
    worker = start(shepherd.port, "a", Protection(tls=tls))
    thread.finish(60)
    worker.join(30)
    return where, watcher


def test_what_a_run_writes_is_signed_and_who_changes_it_is_found(
    tmp_path, capsys
) -> None:
    tls, number = member(tmp_path, "shepherd")
    where, _ = a_run(tmp_path, Protection(tls=tls))
    assert signers(where.ledger) == [number]
    assert main(["verify", str(where.path), "--trust", number]) == 0
    assert f"signed by {number}" in capsys.readouterr().out
    saved = checkpoints.folders(where.path)[0]
    assert main(["verify", str(saved), "--trust", "a" * 32]) == 1
    assert "refused" in capsys.readouterr().err
    lines = where.ledger.read_bytes().splitlines(keepends=True)
    # Whoever writes a line anew has no key: with its own the signer is another, and
    # with none the chain ends.
    other = signer(tmp_path, "other")
    where.ledger.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(ConfigError, match="say --trust"):
        Ledger(where.ledger, other)
    opened = Ledger(where.ledger)
    opened.write("end", {"round": 3})
    opened.close()
    with pytest.raises(StateMismatch, match="is not signed, and those before are"):
        signers(where.ledger)


def test_a_checkpoint_that_others_signed_is_not_gone_on_with(tmp_path) -> None:
    tls, _ = member(tmp_path, "shepherd")
    protection = Protection(tls=tls)
    where, _ = a_run(tmp_path, protection)
    newest = checkpoints.folders(where.path)[0]
    forged = checkpoints.load(newest)
    shutil.rmtree(newest)
    other = signer(tmp_path, "other")
    checkpoints.save(where.path, forged, keep=9, signer=other)
    _, watcher = a_run(tmp_path, protection, rounds=4)
    assert any("not one that was named with --trust" in line for line in watcher.lines)
    (back,) = [r for r in read(where.ledger)[0] if r["kind"] == "rewind"]
    assert back["to"] < forged.round == 3
