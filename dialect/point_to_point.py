"""Send and receive: the two ends of a channel, in the programs of two devices.

A channel has one sender and one receiver of one type in the whole plan; that is
checked by `pcp-verify-plan`. Both always have a write effect: dropping one end
leaves the other waiting.
"""

from typing import Any

from pcp.dialect.base import Op, Writes, integer, kinds, require, tensor
from pcp.dialect.bindings import ext, ir

Peer = ir.FlatSymbolRefAttr | ir.IntegerAttr  # a device, or a rank


class Send(Op, name="send", traits=[Writes]):
    """Send a tensor to a device (or rank) on a channel.

    "pcp.send"(%x) {channel = 1, to = @d1} : (tensor<4xf32>) -> ()
    """

    operand: ext.Operand[Any]
    channel: ir.IntegerAttr
    to: Peer
    optional = kinds(wire=ir.TypeAttr)

    def check(self) -> None:
        """A tensor, a channel that can exist."""
        tensor(self.operands[0])
        check_channel(self, "to")


class Recv(Op, name="recv", traits=[Writes]):
    """Receive the tensor that a device (or rank) sends on a channel.

    %x = "pcp.recv"() {channel = 1, source = @d0} : () -> tensor<4xf32>
    """

    channel: ir.IntegerAttr
    source: Peer
    result: ext.Result[Any]
    optional = kinds(wire=ir.TypeAttr)

    def check(self) -> None:
        """A tensor, a channel that can exist."""
        tensor(self.results[0], "the result")
        check_channel(self, "source")


def check_channel(op: Op, peer: str) -> None:
    """Channels and ranks count from 0."""
    channel = integer(op, "channel")
    require(channel >= 0, f"has channel {channel}; channels count from 0")
    if isinstance(op.attributes[peer], ir.IntegerAttr):
        rank = integer(op, peer)
        require(rank >= 0, f"has {peer} = {rank}; ranks count from 0")
