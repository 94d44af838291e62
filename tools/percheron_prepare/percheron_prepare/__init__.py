"""Percheron's data preparation: chats to token shards with loss masks."""

__version__ = "0.1.0"
