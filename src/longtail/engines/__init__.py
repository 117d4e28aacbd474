"""TASKS → DONE, on many processes or machines: batch prediction and label graphs on engines that exist."""
