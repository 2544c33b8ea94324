"""Communicators, coordinators and workers, in threads or processes."""
