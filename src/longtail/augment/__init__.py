"""→ MORE TRAINING POINTS: each part says where it acts."""
