"""Oracles and programs in processes of their own."""
