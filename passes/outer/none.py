"""One worker alone: no function is added."""

from pcp.passes.outer.rule import OuterRule

RULE = OuterRule(exchanges=False)
