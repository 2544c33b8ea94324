"""The version of pcp, which bundles and `pcp --version` name."""

VERSION = "0.1.0"
