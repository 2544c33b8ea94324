"""Members of a round that say with their heartbeats where they are, and who lacks."""

from helpers.simulation.pure_run import World

from pcp.training.wire.messages import (
    AwaitedRanks,
    Heartbeat,
    InnerExchangeReport,
    Whereabouts,
)

BEAT = 0.25
"""Seconds between two heartbeats."""


class Crew(World):
    """A run whose members are in a round; steps take a tenth of a second."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.liars = ""
        """Members of whom the others get nothing."""
        self.makes()
        self.makes()
        self.tick()
        for peer in self.peers.values():
            self.run.state.roster[peer.name].pace.made(10, 1.0)
        self.since = self.now

    def beats(self, name: str, call: str, lacks: str = "", steps: int = 7) -> None:
        """A member is in a call since the round began, and some have not come to it."""
        where, order = self.now - self.since, self.peers[name].order
        at = Whereabouts.model_validate({"call": call, "steps": steps, "since": where})
        awaits = alone = None
        if lacks:
            ranks = [self.members.index(n) for n in lacks if n in self.members]
            awaits = AwaitedRanks(ranks=ranks, seconds=where)
        elif at.with_others:
            alone = where
        meeting = InnerExchangeReport(
            round=order.round,
            epoch=order.epoch,
            entered=0,
            waits=where,
            awaits=awaits,
            alone=alone,
        )
        self.says(name, Heartbeat(at=at, meeting=meeting))
