"""`python -m threefold.entrypoints.openai.api_server`."""
