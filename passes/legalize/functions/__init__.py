"""Elementary functions to a stated accuracy, where a target's own are worse."""
