"""Elementary functions measured: points, exact values, errors in ulp."""
