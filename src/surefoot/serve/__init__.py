"""HTTP for the embedded engine: Messages, Chat Completions, traces, feedback, metrics, playground."""
