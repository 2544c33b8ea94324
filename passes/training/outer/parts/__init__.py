"""Parts of outer algorithms: means, codes, fragments, probes, error feedback."""
