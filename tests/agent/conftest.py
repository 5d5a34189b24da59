from tests.engine.conftest import one_attempt

__all__ = ["one_attempt"]
