"""The version of the runtime, and of the dp2ddp that converts for it."""

__version__ = "0.1.0"
