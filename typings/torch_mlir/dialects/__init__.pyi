# The wheel has no stubs: whatever is asked of its bindings is Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
