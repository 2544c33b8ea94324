"""All-reduce and reduce-scatter, plain or compressed, by the algorithm that suits."""

from collections.abc import Sequence

from numpy.typing import NDArray

from pcp.errors import UsageError
from pcp.runtime.collectives import build
from pcp.runtime.collectives.compressed_reduce import Squeeze
from pcp.runtime.collectives.operation import Pending
from pcp.runtime.collectives.submit import Posting, Seconds
from pcp.runtime.communicator.array_interop import foreign
from pcp.runtime.compression.codecs import Codec, codec
from pcp.runtime.compression.error_feedback import ErrorFeedback


class Reductions(Posting):
    """The part of a communicator that reduces for all."""

    def all_reduce(
        self,
        array: NDArray,
        op: str = "sum",
        *,
        algorithm: str | None = None,
        compression: str | Codec | None = None,
        feedback: ErrorFeedback | None = None,
        tag: str = "",
        timeout: Seconds = None,
    ) -> NDArray:
        """`array` becomes the reduction of all members' arrays; returns it.

        `op` is sum, mean, max, min or prod. All members end with the same
        bits; `reduction` declares the order and the accumulation type.
        `algorithm` overrides the choice by size and world (`schedules` has them).
        `compression` names one of `codecs`, for sums and means of floats up to
        32 bits; `feedback` keeps under the tag what it drops, for the next call.
        """
        return self.all_reduce_async(
            array,
            op,
            algorithm=algorithm,
            compression=compression,
            feedback=feedback,
            tag=tag,
            timeout=timeout,
        ).result()

    @foreign(writes=True)
    def all_reduce_async(
        self,
        array: NDArray,
        op: str = "sum",
        *,
        algorithm: str | None = None,
        compression: str | Codec | None = None,
        feedback: ErrorFeedback | None = None,
        tag: str = "",
        timeout: Seconds = None,
    ) -> Pending:
        """As `all_reduce`, at once; `result()` of what it returns waits.

        The array must be left alone until then.
        """
        squeeze = _squeeze(compression, feedback, tag)
        patience = self._patience(timeout)
        operation = build.all_reduce(
            self._seat, array, op, patience, squeeze, algorithm
        )
        return self._post(operation, tag)

    def all_reduced(
        self,
        array: NDArray,
        op: str = "sum",
        *,
        algorithm: str | None = None,
        compression: str | Codec | None = None,
        feedback: ErrorFeedback | None = None,
        donate: bool = False,
        tag: str = "",
        timeout: Seconds = None,
    ) -> NDArray:
        """The reduction of all members' arrays, a new array; `array` stays as it is.

        With `donate` it need not: where that saves a copy, which is with engines of
        other libraries, the result takes its place. All else is as in `all_reduce`, the
        bits too. It is faster, since nothing is copied when all have voted, most so on
        one machine for arrays of `shared_empty` and results of this call.
        """
        return self.all_reduced_async(
            array,
            op,
            algorithm=algorithm,
            compression=compression,
            feedback=feedback,
            donate=donate,
            tag=tag,
            timeout=timeout,
        ).result()

    @foreign()
    def all_reduced_async(
        self,
        array: NDArray,
        op: str = "sum",
        *,
        algorithm: str | None = None,
        compression: str | Codec | None = None,
        feedback: ErrorFeedback | None = None,
        donate: bool = False,
        tag: str = "",
        timeout: Seconds = None,
    ) -> Pending:
        """As `all_reduced`, at once; the array must be left alone until the end."""
        squeeze = _squeeze(compression, feedback, tag)
        patience = self._patience(timeout)
        operation = build.all_reduced(
            self._seat, array, op, patience, squeeze, algorithm
        )
        return self._post(operation, tag)

    def reduce_scatter(
        self,
        array: NDArray,
        op: str = "sum",
        *,
        sizes: Sequence[int] | None = None,
        compression: str | Codec | None = None,
        feedback: ErrorFeedback | None = None,
        tag: str = "",
        timeout: Seconds = None,
    ) -> NDArray:
        """This member's part of the reduction, split along the first dimension.

        `sizes` are the members' numbers of rows; without it, of n rows members
        get n // world_size each, the first n % world_size of them one more.
        `compression` and `feedback` are as in `all_reduce`.
        """
        return self.reduce_scatter_async(
            array,
            op,
            sizes=sizes,
            compression=compression,
            feedback=feedback,
            tag=tag,
            timeout=timeout,
        ).result()

    @foreign()
    def reduce_scatter_async(
        self,
        array: NDArray,
        op: str = "sum",
        *,
        sizes: Sequence[int] | None = None,
        compression: str | Codec | None = None,
        feedback: ErrorFeedback | None = None,
        tag: str = "",
        timeout: Seconds = None,
    ) -> Pending:
        """As `reduce_scatter`, at once."""
        squeeze = _squeeze(compression, feedback, tag)
        patience = self._patience(timeout)
        operation = build.reduce_scatter(
            self._seat, array, op, sizes, patience, squeeze
        )
        return self._post(operation, tag)


def _squeeze(
    compression: str | Codec | None, feedback: ErrorFeedback | None, tag: str
) -> Squeeze | None:
    if compression is None:
        if feedback is not None:
            raise UsageError("feedback= without compression= has nothing to remember")
        return None
    return Squeeze(codec(compression), feedback, tag)
