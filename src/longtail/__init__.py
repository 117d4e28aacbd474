"""longtail: extreme multi-label text classification for short texts and long tails."""
