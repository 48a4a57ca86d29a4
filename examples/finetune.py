"""Fine-tunes a pretrained model of timm with a mask on images in folders, one for each class.

python examples/finetune.py IMAGES --mask gab       # writes finetuned/: gmmvit.load("finetuned") reads it
"""

import argparse
from itertools import chain, islice, repeat

import timm
import torch
import torch.nn.functional as F
from timm.data import create_dataset, create_transform, resolve_model_data_config
from timm.optim import create_optimizer_v2

import gmmvit

words = argparse.ArgumentParser()
words.add_argument("images", help="IMAGES/CLASS/*.jpg")
words.add_argument("--model", default="vit_tiny_patch16_224")
words.add_argument("--weights", help="a local file instead of timm's download")
words.add_argument("--mask", default="gmm", choices=[*gmmvit.MASKS, "none"])
words.add_argument("--steps", type=int, default=200)
words.add_argument("--out", default="finetuned")
args = words.parse_args()

data = create_dataset("folder", args.images)
file = {"file": args.weights} if args.weights else {}
model = timm.create_model(args.model, True, pretrained_cfg_overlay=file, num_classes=len(data.reader.class_to_idx))
data.transform = create_transform(**resolve_model_data_config(model), is_training=True)
loader = torch.utils.data.DataLoader(data, batch_size=min(64, len(data)), shuffle=True, drop_last=True)

sites = gmmvit.attach(model, args.mask, start="neutral")  # the model's output is what it was
optimizer = create_optimizer_v2(model.train(), "adamw", lr=3e-4, weight_decay=0.05)  # decays no sigma and no alpha
for images, labels in islice(chain.from_iterable(repeat(loader)), args.steps):
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss:.3f}; how far the masks have moved: {[round(site.strength, 4) for site in sites]}")
gmmvit.save(model, args.out)
