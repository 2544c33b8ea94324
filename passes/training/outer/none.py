"""One worker alone: no function is added."""

from pcp.passes.training.outer.rule import OuterRule

RULE = OuterRule(exchanges=False)
