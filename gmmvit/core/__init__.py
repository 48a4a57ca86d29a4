"""The library: spatial masks on the attention of any timm transformer; needs torch, timm and numpy alone."""
