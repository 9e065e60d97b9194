"""What a script sees in place of `nn.DataParallel`, CUDA and torchvision's data sets."""
