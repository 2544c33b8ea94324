"""The commands of `pcp`, one file each."""
