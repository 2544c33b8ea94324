"""A shepherd that listens on all addresses of its machine."""

from datetime import datetime

import pytest
from helpers.models.bigram_numpy import bundle
from helpers.worlds.training_runs import experiment

from pcp.training.observe.metrics import NullObserver
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage.run_folder import RunFolder


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_a_shepherd_takes_a_host(tmp_path, host):
    exp = experiment(tmp_path)
    folder = RunFolder.create(exp, datetime.now())
    shepherd = Shepherd(exp, folder, lambda _: bundle(), NullObserver(), host=host)
    try:
        assert shepherd.port
        assert shepherd.endpoint.address.startswith(f"{host}:")
    finally:
        shepherd.close()
