"""What a workflow or pipeline file asks for that is wrong, or that the simulated runner cannot do."""


class Problem(Exception):
    """Told to people as it stands."""
