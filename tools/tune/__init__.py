"""How products are computed on a processor, found by measuring them there."""
