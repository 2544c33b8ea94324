"""Shardings as Shardy writes them, the dialect `sdy`, read as ours."""
