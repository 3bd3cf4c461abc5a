"""`crcr demo` and `crcr demo-join`."""
