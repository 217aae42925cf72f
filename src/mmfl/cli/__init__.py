"""What the command line needs to be at home in a shell: completion, help, one console, the names a user can type.

Everything here answers at once, so nothing here imports torch, and neither does what it imports.
"""
