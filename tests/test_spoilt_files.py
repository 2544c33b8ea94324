"""Files of every kind that pcp reads, changed at random: errors of ours, no other."""

import base64
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from helpers.faults import file_fuzzer

from pcp.errors import ConfigError
from pcp.runtime.transport import certificates


def test_changed_files_are_taken_or_refused(tmp_path) -> None:
    found = file_fuzzer.survey(tmp_path, 2_000, seed=0)
    assert len(found) >= 12
    for name, (refused, _) in found.items():
        assert refused > 10, f"{name}: hardly anything was changed that matters"


def test_a_key_of_a_kind_that_nobody_knows_is_no_identity(tmp_path) -> None:
    path = tmp_path / "key"
    certificates.new_identity(path)
    head, body, tail, _ = path.read_text().split("\n")
    other = base64.b64decode(body).replace(b"\x2b\x65\x70", b"\x2b\x65\x11")
    path.write_text(f"{head}\n{base64.b64encode(other).decode()}\n{tail}\n")
    with pytest.raises(ConfigError, match="no identity: Unknown key type"):
        certificates.load_identity(path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_million_changed_files(seed) -> None:
    """Twelve kinds, 100,000 a seed; half a minute of a processor each."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with TemporaryDirectory(dir=memory) as folder:
        found = file_fuzzer.survey(Path(folder), 100_000, seed)
    for name, (refused, taken) in found.items():
        print(f"{name}: {refused} refused, {taken} taken")
    assert sum(refused + taken for refused, taken in found.values()) == 100_000
