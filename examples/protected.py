"""A group that only those enter who have its key and a certificate; all encrypted.

python examples/protected.py

Needs `pip install trustme`, which makes the certificates here; for real ones any
authority of your own will do (`openssl`, `step`), made for this group alone.
"""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import trustme

from pcp.errors import RuntimeFault
from pcp.runtime import Communicator, Coordinator, Tls

KEY = "what `openssl rand -hex 32` says"


def certified(folder: Path) -> Tls:
    """A member's certificate, its key, and who signed it, as files."""
    authority = trustme.CA()
    member = authority.issue_cert("a-member")
    member.cert_chain_pems[0].write_to_path(folder / "member.pem")
    member.private_key_pem.write_to_path(folder / "member.key")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return Tls(folder / "member.pem", folder / "member.key", folder / "ca.pem")


def enter(where: str, name: str, **shown) -> str:
    """Join, add something up, and leave; or hear why not."""
    try:
        with Communicator.join(where, name=name, timeout=10, **shown) as comm:
            total = comm.all_reduce(np.ones(3))
            return f"{name}: {total[0]:g} members, all of them known"
    except RuntimeFault as fault:
        return f"{name}: refused: {fault}"


def main() -> None:
    """Strangers first, who find nobody to talk to; then the members."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        tls = certified(Path(folder))
        with Coordinator.listen("127.0.0.1:0", first=2, key=KEY, tls=tls) as here:
            print(enter(here.address, "in the clear", key=KEY))
            print(enter(here.address, "another key", key="a wrong guess", tls=tls))
            known = {"key": KEY, "tls": tls}
            runs = [pool.submit(enter, here.address, n, **known) for n in ("a", "b")]
            print("\n".join(run.result() for run in runs))


if __name__ == "__main__":
    main()
