"""`pcp launch --on ray` on a cluster of several node processes on this machine."""

import sys

from ray.cluster_utils import Cluster

from pcp.tools.cli import main


def run(nodes: str, config: str, workers: str) -> int:
    """Start `nodes` nodes of one CPU, launch, and stop them."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        for _ in range(int(nodes) - 1):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        where = ["--address", cluster.address, "--listen", "127.0.0.1"]
        return main(["launch", config, "--on", "ray", "--workers", workers, *where])
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    raise SystemExit(run(*sys.argv[1:]))
