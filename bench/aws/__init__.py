"""The relay on AWS."""
