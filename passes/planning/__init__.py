"""Which devices do what: the cost model behind `pcp-plan`, and its search."""
