"""The acceptance replay: its steps and records, how they are performed, and the evidence that comes of them."""
