"""Starting and ending the processes of both sides: nothing of a comparison outlives the command. Imports no torch."""
