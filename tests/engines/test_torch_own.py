"""PyTorch's own distributed tests, with pcp in Gloo's place."""

import pytest
from helpers.servers.processes import Processes

#: What passes on Gloo and not here, and docs/collectives.md says why.
FAILING = {
    "test_barrier_timeout_full_group",
    "test_get_backend",
    "test_send_recv_any_source",
    "test_send_recv_any_source_autograd_profiler",
    "test_send_recv_any_source_torch_profiler",
}
SECONDS = 900


@pytest.mark.timeout(2000)
@pytest.mark.slow  # 370 processes: five minutes of two busy processors
def test_what_passes_on_gloo_passes_on_pcp(tmp_path) -> None:
    ended: dict[str, dict[str, str]] = {}
    for backend in ("gloo", "pcp"):
        with Processes() as processes:
            into = tmp_path / backend
            run = processes.start(
                "helpers.oracles.torch_own_tests", backend, "--into", into
            )
            run.wait(SECONDS)
        told = [line.split() for line in into.read_text().splitlines()]
        ended[backend] = {words[1]: words[0] for words in told}
    passed = {name for name, how in ended["gloo"].items() if how == "passed"}
    assert len(passed) > 85
    failing = {name for name in passed if ended["pcp"].get(name) != "passed"}
    assert failing == FAILING
