"""Kernel schedules that pcp chooses: contractions by form, shape and vector width."""
