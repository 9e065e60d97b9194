"""Where models are wrapped in `nn.DataParallel`, of what they are parts, and what reaches for the replicas."""
