"""A model in closed form, and drawn schedules of requests to it."""
