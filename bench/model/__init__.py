"""How far a deployment goes: measured costs, a capacity model, and a simulation of its busiest minutes."""
