"""Child processes of ours: started, spoken to in JSON lines, and killed with whatever they left running."""
