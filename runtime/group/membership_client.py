"""A member's side of the membership protocol, without sockets or threads.

The client passes on the questions of its group and the messages of the coordinator.
Messages about the renewal of the group (prepare, go, refused) go to `renewal`, in whose
thread the connections are made. All methods run in the loop's thread.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from pcp.errors import ProtocolError
from pcp.runtime.group.group import Group
from pcp.runtime.group.membership import Key, Past

Say = Callable[[str, dict[str, Any]], None]


class PresentMembers(NamedTuple):
    """The members that a coordinator knows, by name."""

    group: list[str]
    """Live members of the present group, by rank."""
    waiting: list[str]
    """Members that are to enter with the next renewal."""
    wanted: int
    """How many the first group waits for; 0 behind it."""


class MembershipClient:
    """The membership of one member, as the member knows it."""

    def __init__(self, name: str, say: Say, renewal: Say) -> None:
        self.name = name
        self.group: Group | None = None
        """The group of the epoch that was agreed last."""
        self.names: list[str] = []
        """The names of its members by rank."""
        self.addresses: list[str] = []
        self.formed: Group | None = None
        """A newer group that has its connections and waits for the go."""
        self.voting = False
        self.withdrawing = False
        """Whether the vote is being taken back; it may have been answered before."""
        self.present: PresentMembers | None = None
        """The coordinator's last answer to `ask_who`."""
        self.turn = 0
        """Votes of this epoch that were answered without a change."""
        self._prepared = 0
        self._gone: dict[int, list[str]] = {}
        """Members that the coordinator declared dead, by epoch."""
        self._candidates: tuple[list[str], list[str]] = ([], [])
        self._say = say
        self._renewal = renewal

    @property
    def epoch(self) -> int:
        """The epoch that was agreed last; 0 before the first."""
        return self.group.epoch if self.group is not None else 0

    # Messages of the member.

    def ask_who(self) -> None:
        """Ask who is here; the answer is `present`."""
        self.present = None
        self._say("who", {})

    def vote(self) -> None:
        """Ask to renew the group, which has no operation under way."""
        self.voting, self.withdrawing = True, False
        broken = self.group is not None and self.group.fault is not None
        self._say("vote", {"broken": broken})

    def unvote(self) -> None:
        """Take the vote back; `unvoted` has the outcome."""
        if self.voting:
            self.withdrawing = True
            self._say("unvote", {})

    def unvoted(self) -> bool:
        """Whether the vote was taken back; False when it had been answered."""
        taken_back = self.voting
        self.voting = self.withdrawing = False
        return taken_back

    def has_formed(self, group: Group, names: list[str], addresses: list[str]) -> None:
        """Report that all connections of a prepared epoch are made."""
        self.formed = group
        self._candidates = (names, addresses)
        self._say("formed", {"epoch": group.epoch})

    def has_not_formed(self, epoch: int, lost: list[str]) -> None:
        """Report the candidates of a prepared epoch that did not answer."""
        self._say("failed", {"epoch": epoch, "lost": lost})

    def past(self) -> Past:
        """The past that a member sends when it connects again."""
        newest = (self.names, self.addresses)
        formed = self.formed.epoch if self.formed is not None else 0
        if formed:
            newest = self._candidates
        return Past(
            epoch=self.epoch,
            group=dict(zip(*newest, strict=True)),
            formed=formed,
            gone=self._gone.get(formed or self.epoch, []),
            prepared=self._prepared,
            turn=self.turn,
            voting=self.voting and not self.withdrawing,
            broken=self.group is not None and self.group.fault is not None,
        )

    def ask_again(self) -> None:
        """Repeat the questions without an answer, for a restarted coordinator."""
        if self.group is not None:
            for key in self.group.doubtful:
                self._ask(self.group.epoch, key)

    # Messages of the coordinator.

    def hear(self, what: str, facts: dict[str, Any]) -> None:
        """Handle a message of the coordinator."""
        match what:
            case "dead":
                self._dead(int(facts["epoch"]), str(facts["name"]))
            case "query":
                self._query(int(facts["epoch"]), _key(facts))
            case "decided":
                if self.group is not None and self.epoch == facts["epoch"]:
                    self.group.decided(_key(facts), bool(facts["commit"]))
            case "unvoted":
                self.withdrawing = False
            case "present":
                group, waiting = list(facts["group"]), list(facts["waiting"])
                self.present = PresentMembers(group, waiting, int(facts["wanted"]))
            case "go":
                if self._go(int(facts["epoch"])):
                    self._renewal(what, facts)
            case "prepare":
                self._prepared = max(self._prepared, int(facts["epoch"]))
                self._renewal(what, facts)
            case "refused":
                self._renewal(what, facts)
            case _:
                raise ProtocolError(f"the coordinator says {what!r}")

    def _dead(self, epoch: int, name: str) -> None:
        for group, names in (
            (self.group, self.names),
            (self.formed, self._candidates[0]),
        ):
            if group is not None and group.epoch == epoch and name in names:
                rank = names.index(name)
                self._gone.setdefault(epoch, []).append(name)
                group.peer_died(rank, f"rank {rank} ({name}) is lost: it left or died")

    def _query(self, epoch: int, key: Key) -> None:
        done = self.epoch == epoch and self.group is not None
        done = done and self.group is not None and self.group.concede(key)
        self._say("answer", {"epoch": epoch, "key": list(key), "done": done})

    def _go(self, epoch: int) -> bool:
        """Whether a go answers our vote, and does not repeat an earlier one."""
        if self.formed is not None and self.formed.epoch == epoch:
            self.group, self.formed = self.formed, None
            self.names, self.addresses = self._candidates
            self.group.arbiter = lambda key: self._ask(epoch, key)
            self.turn = 0
            self._gone = {e: names for e, names in self._gone.items() if e >= epoch}
        elif self.voting and self.epoch == epoch:
            self.turn += 1
        else:
            return False
        self.voting = False
        return True

    def _ask(self, epoch: int, key: Key) -> None:
        self._say("ask", {"epoch": epoch, "key": list(key)})


def _key(facts: dict[str, Any]) -> Key:
    tag, seq = facts["key"]
    return int(tag), int(seq)
