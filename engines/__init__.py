"""pcp's collectives under other frameworks' names."""
