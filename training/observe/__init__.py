"""A run to look at: metrics, dashboards, exporters."""
