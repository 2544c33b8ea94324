"""The worked answers; `pcp guide start` writes them with holes."""
