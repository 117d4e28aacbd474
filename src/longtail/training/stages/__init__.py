"""The stages of a training, one after the other, each of which a killed run continues."""
