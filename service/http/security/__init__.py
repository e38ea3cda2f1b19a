"""Security: API keys, rate limits, browser headers."""
