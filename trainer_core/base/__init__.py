"""What every part of the core needs: errors, text, names, secrets, validation, quantities."""
