"""Memory of tensors: element types, scratch that is used again, segments that processes share."""
