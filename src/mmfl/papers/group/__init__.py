"""Gong et al., Group-based Client Sampling in Multi-Model Federated Learning."""

from mmfl.papers.group.figures import REPRODUCTIONS

__all__ = ["REPRODUCTIONS"]
