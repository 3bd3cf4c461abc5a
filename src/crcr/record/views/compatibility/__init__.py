"""What works together: states of backends at commits, and the newest common green one."""
