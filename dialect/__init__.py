"""What a distributed heterogeneous program is: ops, types, verifiers, builders."""
