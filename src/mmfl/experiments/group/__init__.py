"""Gong et al., Group-based Client Sampling in Multi-Model Federated Learning."""

from mmfl.experiments.group.figures import REPRODUCTIONS

__all__ = ["REPRODUCTIONS"]
