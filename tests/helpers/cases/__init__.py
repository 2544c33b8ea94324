"""Data that tests are parametrised with."""
