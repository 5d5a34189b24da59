"""The only place that owns tasks. Everything it needs from the machine comes in through ports."""
