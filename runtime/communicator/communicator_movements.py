"""Collectives that move arrays as they are: gather, broadcast, exchange, barrier."""

from collections.abc import Iterable, Sequence

from numpy.typing import NDArray

from pcp.runtime.collectives import build
from pcp.runtime.collectives.barrier import Barrier
from pcp.runtime.collectives.operation import Pending
from pcp.runtime.collectives.submit import Posting, Seconds
from pcp.runtime.communicator.array_interop import foreign


class Movements(Posting):
    """The part of a communicator that moves arrays."""

    def all_gather(
        self, array: NDArray, *, tag: str = "", timeout: Seconds = None
    ) -> NDArray:
        """All members' arrays, joined along the first dimension in rank order.

        First dimensions may differ; scalars become a vector.
        """
        return self.all_gather_async(array, tag=tag, timeout=timeout).result()

    @foreign()
    def all_gather_async(
        self, array: NDArray, *, tag: str = "", timeout: Seconds = None
    ) -> Pending:
        """As `all_gather`, at once."""
        operation = build.all_gather(self._seat, array, self._patience(timeout))
        return self._post(operation, tag)

    def broadcast(
        self,
        array: NDArray,
        root: int = 0,
        *,
        tag: str = "",
        timeout: Seconds = None,
    ) -> NDArray:
        """`array` becomes the root's, on all members; returns it."""
        return self.broadcast_async(array, root, tag=tag, timeout=timeout).result()

    @foreign(writes=True)
    def broadcast_async(
        self,
        array: NDArray,
        root: int = 0,
        *,
        among: Iterable[int] | None = None,
        turn: int | None = None,
        tag: str = "",
        timeout: Seconds = None,
    ) -> Pending:
        """As `broadcast`, at once; `among` limits it to some members.

        Members that sit some of a tag's broadcasts out say by `turn`, which
        only grows, which one they mean.
        """
        patience = self._patience(timeout)
        operation = build.broadcast(self._seat, array, root, among, patience)
        return self._post(operation, tag, turn)

    def all_to_all(
        self, array: NDArray, *, tag: str = "", timeout: Seconds = None
    ) -> NDArray:
        """Part j of the first dimension goes to member j; theirs come back.

        The first dimension must be a multiple of the world size; the result
        has the shape of `array`, part i coming from member i.
        """
        return self.all_to_all_async(array, tag=tag, timeout=timeout).result()

    @foreign()
    def all_to_all_async(
        self, array: NDArray, *, tag: str = "", timeout: Seconds = None
    ) -> Pending:
        """As `all_to_all`, at once."""
        operation = build.all_to_all(self._seat, array, self._patience(timeout))
        return self._post(operation, tag)

    def permute(
        self,
        array: NDArray,
        pairs: Sequence[tuple[int, int]],
        *,
        tag: str = "",
        timeout: Seconds = None,
    ) -> NDArray:
        """The array of whoever sends here by `pairs` of (source, target).

        A member that is nobody's target gets zeros.
        """
        return self.permute_async(array, pairs, tag=tag, timeout=timeout).result()

    @foreign()
    def permute_async(
        self,
        array: NDArray,
        pairs: Sequence[tuple[int, int]],
        *,
        tag: str = "",
        timeout: Seconds = None,
    ) -> Pending:
        """As `permute`, at once."""
        operation = build.permute(self._seat, array, pairs, self._patience(timeout))
        return self._post(operation, tag)

    def send(
        self, array: NDArray, dst: int, tag: int = 0, *, timeout: Seconds = None
    ) -> None:
        """Send to the member whose `recv` has the same tag.

        Up to 32 KiB is handed over at once; more waits for the receiver.
        """
        self.send_async(array, dst, tag, timeout=timeout).result()

    @foreign()
    def send_async(
        self, array: NDArray, dst: int, tag: int = 0, *, timeout: Seconds = None
    ) -> Pending:
        """As `send`, at once."""
        operation = build.send(self._seat, array, dst, self._patience(timeout))
        return self._post(operation, f"p2p/{self._seat.rank}/{dst}/{tag}")

    def recv(
        self, out: NDArray, src: int, tag: int = 0, *, timeout: Seconds = None
    ) -> NDArray:
        """`out` becomes what member `src` sends under the tag; returns it."""
        return self.recv_async(out, src, tag, timeout=timeout).result()

    @foreign(writes=True)
    def recv_async(
        self, out: NDArray, src: int, tag: int = 0, *, timeout: Seconds = None
    ) -> Pending:
        """As `recv`, at once."""
        operation = build.recv(self._seat, out, src, self._patience(timeout))
        return self._post(operation, f"p2p/{src}/{self._seat.rank}/{tag}")

    def barrier(
        self, *, pairs: bool = True, tag: str = "", timeout: Seconds = None
    ) -> None:
        """Wait until all members are here, and what they called before is over.

        That is every operation of this communicator that was called before on any
        member, whatever its tag, `_async` ones too: it has happened on all members, or
        failed on all, which its own future says. Without `pairs` it does not wait for
        sends and receives, which may then be met behind the barrier.
        """
        self.barrier_async(pairs=pairs, tag=tag, timeout=timeout).result()

    def barrier_async(
        self, *, pairs: bool = True, tag: str = "", timeout: Seconds = None
    ) -> Pending:
        """As `barrier`, at once."""
        patience = self._patience(timeout)
        return self._post(Barrier(self._seat.peers, patience, pairs=pairs), tag)
