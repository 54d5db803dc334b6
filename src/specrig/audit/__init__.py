"""Proof that lossless methods are lossless: token identity at temperature 0, the exact distribution above."""
