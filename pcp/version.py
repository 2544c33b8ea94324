"""The version of pcp, which bundles and `pcp --version` name, and its distribution."""

VERSION = "0.1.0"
DISTRIBUTION = "pcp-mlir"
"""What pip knows pcp by. The distribution `pcp` is Performance Co-Pilot's."""
