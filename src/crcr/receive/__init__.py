"""The way in: verify bytes, parse them into types, hand them to a decision."""
