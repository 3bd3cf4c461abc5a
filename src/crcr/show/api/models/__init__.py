"""The JSON API's answers as pydantic models."""
