"""Memory of tensors: element types, scratch buffers, shared segments."""
