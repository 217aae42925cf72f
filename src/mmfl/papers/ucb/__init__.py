"""Bhuyan & Moharir 2022, Multi-Model Federated Learning: bandits choose the clients of two models."""

from mmfl.papers.ucb.figures import REPRODUCTIONS

__all__ = ["REPRODUCTIONS"]
