"""The shepherds of a run that stand by: elections, and copies of the ledger."""
