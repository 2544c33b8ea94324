"""The words of pcp-opt that its command line and its work share."""

PROG = "pcp-opt"
#: Between the parts of an input that `--split-input-file` works on one by one.
SEPARATOR = "// -----"
