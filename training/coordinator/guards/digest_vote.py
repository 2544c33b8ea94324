"""The digest vote: which of the states counts that members prepared.

All members compute the same result of a round, up to rounding, and take the bits of
rank 0. A member whose own result differs by more keeps its own, and disputes. So in a
group with one wrong member most digests are equal, and that state counts:

    all equal              the state counts
    more than half equal   that state counts, and the other members are wrong
    else                   if most of the others dispute rank 0's, rank 0 is wrong;
                           a member that prepared something else than the time before,
                           while another did not, is wrong; else no member is known
                           to be
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pcp.training.wire.messages import (
    Prepared,
)


@dataclass(frozen=True)
class Verdict:
    """The state that counts, if there is one, and the members that prepared another."""

    digest: str | None
    wrong: Sequence[str] = ()


def vote(
    members: Sequence[str],
    prepared: Mapping[str, Prepared],
    before: Mapping[str, str],
) -> Verdict:
    """The verdict on what `members`, by rank, prepared.

    `before` are the digests of the last attempt, if it had the same members.
    """
    found = {prepared[name].digest for name in members}
    if len(found) == 1:
        return Verdict(found.pop())
    counts = Counter(prepared[name].digest for name in members)
    digest, votes = counts.most_common(1)[0]
    if 2 * votes > len(members):
        return Verdict(digest, [n for n in members if prepared[n].digest != digest])
    first, *others = members
    disputing = [name for name in others if prepared[name].disputes]
    if 2 * len(disputing) > len(others) and len(others) > 1:
        return Verdict(None, [first])
    changed = [n for n in members if before.get(n) not in (None, prepared[n].digest)]
    if changed and len(changed) < len(members):
        return Verdict(None, changed)
    return Verdict(None)
