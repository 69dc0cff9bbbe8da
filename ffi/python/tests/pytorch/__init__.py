"""Tests with PyTorch."""
