"""Programs made smaller: arithmetic, data movement, contractions."""
