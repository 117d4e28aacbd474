"""The encoders while they are trained, in torch: a file for each, imported when it is built."""
