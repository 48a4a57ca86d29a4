"""The sets of image files out of their official layouts: one function a set, -> (Listing, where it came from)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from torchvision.datasets import OxfordIIITPet
from torchvision.datasets import imagenet as official_imagenet

from ..data.files import Listing
from ..data.places import downloads, locate, root, scratch
from ..data.sets import POOLED, DataSet
from .download import Archive, NotObtained, fetch, unpack, unpacked

CALTECH = Archive(  # torchvision has this address only inside a method
    "caltech101/caltech-101.zip",
    "https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
    "3138e1922a9193bfa496528edbbc45d0",
)
DOGS = Archive("stanford-dogs/images.tar", "http://vision.stanford.edu/aditya86/ImageNetDogs/images.tar")
PICTURES = (".jpg", ".jpeg", ".png")


def class_folders(home: Path, below: str = "") -> Listing:
    """A folder of class folders, in the order of torchvision's ImageFolder: sorted classes, sorted files."""
    top = home / below
    classes = sorted(entry.name for entry in os.scandir(top) if entry.is_dir())
    files = [(label, name) for label, wnid in enumerate(classes) for name in sorted(os.listdir(top / wnid))]
    images = [
        (label, os.path.join(below, classes[label], name)) for label, name in files if name.lower().endswith(PICTURES)
    ]
    return Listing(home, classes, {POOLED: images})


def pets(dataset: DataSet) -> tuple[Listing, str]:
    """Oxford-IIIT Pets: the images that the two official lists name; the class is what stands before the last _."""
    home = locate("oxford-iiit-pet") or downloads() / "oxford-iiit-pet"
    for url, md5 in OxfordIIITPet._RESOURCES:
        name = url.rsplit("/", 1)[1]
        part = home / name.split(".")[0]
        if not part.is_dir():
            unpack(fetch(Archive(f"oxford-iiit-pet/{name}", url, md5)), part)
    lists = [home / "annotations" / name for name in ("trainval.txt", "test.txt")]
    stems = {line.split()[0] for path in lists for line in path.read_text().splitlines() if line.strip()}
    classes = sorted({stem.rsplit("_", 1)[0] for stem in stems})
    rows = sorted((classes.index(stem.rsplit("_", 1)[0]), f"{stem}.jpg") for stem in stems)
    return Listing(home / "images", classes, {POOLED: rows}), "oxford-iiit-pet/, official lists trainval and test"


def caltech101(dataset: DataSet) -> tuple[Listing, str]:
    """Caltech-101 with its background class, which torchvision's class leaves out."""
    folder = "101_ObjectCategories"
    home = locate(f"caltech101/{folder}", folder)
    if not home:
        with unpacked(fetch(CALTECH)) as inner:
            home = unpack(inner / "caltech-101" / f"{folder}.tar.gz", downloads() / "caltech101" / folder)
    return class_folders(home), f"{folder}/, with its background class"


def cars(dataset: DataSet) -> tuple[Listing, str]:
    """Stanford Cars, training and test images pooled; the classes sorted by their official names."""
    from scipy.io import loadmat

    home = locate("stanford_cars")
    lists = {"cars_train": "devkit/cars_train_annos.mat", "cars_test": "cars_test_annos_withlabels.mat"}
    needed = ["devkit/cars_meta.mat", *lists, *lists.values()]
    missing = [name for name in needed if not (home and (home / name).exists())]
    if missing:
        raise NotObtained(
            "Stanford Cars is no longer offered for download by its authors. Put cars_train/, cars_test/, devkit/ and "
            f"cars_test_annos_withlabels.mat into {downloads() / 'stanford_cars'} (missing: {', '.join(missing)})"
        )
    official = loadmat(home / "devkit" / "cars_meta.mat", squeeze_me=True)["class_names"].tolist()
    classes = sorted(official)
    rows = []
    for folder, labelled in lists.items():
        for car in loadmat(home / labelled, squeeze_me=True)["annotations"]:
            rows.append((classes.index(official[int(car["class"]) - 1]), f"{folder}/{car['fname']}"))
    return Listing(home, classes, {POOLED: sorted(rows)}), "stanford_cars/, official annotations"


def dogs(dataset: DataSet) -> tuple[Listing, str]:
    """Stanford Dogs, all images of the 120 breed folders."""
    home = locate("stanford-dogs/Images", "Images") or unpack(fetch(DOGS), downloads() / "stanford-dogs" / "Images")
    return class_folders(home), "stanford-dogs/Images/"


def imagenet(dataset: DataSet) -> tuple[Listing, str]:
    """ImageNet-1K: train/ and val/ of wnid folders, or the three official archives, which torchvision unpacks."""
    home = locate("imagenet") or downloads() / "imagenet"
    archives = [official_imagenet.ARCHIVE_META[part][0] for part in ("train", "val", "devkit")]
    for split, parse in (
        ("train", official_imagenet.parse_train_archive),
        ("val", official_imagenet.parse_val_archive),
    ):
        if (home / split).is_dir():
            continue
        missing = [name for name in archives if not (home / name).is_file()]
        if missing:
            raise NotObtained(
                f"ImageNet is free only after registration. Put {', '.join(archives)}, or folders train/ and val/ of "
                f"wnid folders, into {downloads() / 'imagenet'} (missing: {split}/, {', '.join(missing)})"
            )
        try:
            official_imagenet.parse_devkit_archive(home)
            with scratch(home / split) as folder:
                parse(home, folder=f"{folder.name}/{split}")
                os.replace(folder / split, home / split)
        except RuntimeError as error:  # a wrong md5
            raise NotObtained(str(error)) from error
    train, test = class_folders(home, "train"), class_folders(home, "val")
    if train.classes != test.classes:
        odd = sorted(set(train.classes) ^ set(test.classes))
        raise ValueError(f"{home}: train/ and val/ have different class folders, {odd[0]} for one; val/ needs them too")
    images = {"train": train.images[POOLED], "test": test.images[POOLED]}
    return Listing(home, train.classes, images), f"{os.path.relpath(home, root())}/, as put there"


LIST: dict[str, Callable[[DataSet], tuple[Listing, str]]] = {
    "pets": pets,
    "caltech101": caltech101,
    "cars": cars,
    "dogs": dogs,
    "imagenet": imagenet,
}
