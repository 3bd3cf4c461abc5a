"""What people and CI do, in domain words."""
