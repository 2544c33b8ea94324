"""What commands share: parsers, signals, processes, flags."""
