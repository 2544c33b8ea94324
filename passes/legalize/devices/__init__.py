"""What IREE wants of programs for one kind of device, besides pcp-legalize."""
