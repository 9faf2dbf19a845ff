"""Data for `terrace train`: `python -m terrace.data prepare` and `python -m terrace.data chat`."""
