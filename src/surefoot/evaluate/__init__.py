"""Evidence: what steadying bought, from logs."""
