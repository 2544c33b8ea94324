"""Observers of a run: metrics, dashboards, exporters."""
