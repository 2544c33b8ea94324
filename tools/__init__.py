"""Command lines: argv, printing, exit codes, environment."""
