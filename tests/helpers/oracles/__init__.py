"""What results are held against."""
