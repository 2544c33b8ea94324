"""What a run watches over: values, votes, conduct and progress of its members."""
