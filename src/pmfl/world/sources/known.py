"""What is published about the data sets with a name: classes, counts, statistics, licences, origins."""

from __future__ import annotations

import string
from dataclasses import dataclass

DIGITS = tuple(string.digits)
TEN_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
MNIST_FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


@dataclass(frozen=True)
class Remote:
    """One published file and its published hash."""

    url: str
    md5: str

    @property
    def file(self) -> str:
        """The name it is known by."""
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True, kw_only=True)
class Known:
    """A data set that needs no explanation."""

    name: str
    shape: tuple[int, int, int]
    labels: tuple[str, ...] | None  # None: its files name them
    classes: int
    train: int  # samples as published
    test: int | None  # None: published without a test split
    mean: tuple[float, ...] | None  # None: computed from train
    std: tuple[float, ...] | None
    augment: str
    licence: str
    hub: str  # owner/name[:config]
    remotes: tuple[Remote, ...] = ()
    folders: tuple[str, ...] = ()  # the names under which people keep it
    copy: str = "files"  # what a copy looks like, for messages


def _mnist_like(base: str, hashes: tuple[str, ...]) -> tuple[Remote, ...]:
    return tuple(Remote(f"{base}/{file}-ubyte.gz", md5) for file, md5 in zip(MNIST_FILES, hashes, strict=True))


CIFAR_STATISTICS = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
CIFAR_LICENCE = "the authors state none; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"

KNOWN: dict[str, Known] = {
    known.name: known
    for known in (
        Known(
            name="svhn",
            shape=(32, 32, 3),
            labels=DIGITS,
            classes=10,
            train=73_257,
            test=26_032,
            mean=(0.4377, 0.4438, 0.4728),
            std=(0.1980, 0.2010, 0.1970),
            augment="crop",
            licence="non-commercial use only (authors' page); cite Netzer et al., NIPS workshop 2011",
            hub="ufldl-stanford/svhn:cropped_digits",
            remotes=(
                Remote("http://ufldl.stanford.edu/housenumbers/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
                Remote("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
            ),
            folders=("svhn", "SVHN", "train_32x32.mat", "svhn_train.parquet"),
            copy="train_32x32.mat and test_32x32.mat, or Parquet files",
        ),
        Known(
            name="cifar10",
            shape=(32, 32, 3),
            labels=TEN_THINGS,
            classes=10,
            train=50_000,
            test=10_000,
            mean=CIFAR_STATISTICS[0],
            std=CIFAR_STATISTICS[1],
            augment="crop-flip",
            licence=CIFAR_LICENCE,
            hub="uoft-cs/cifar10",
            remotes=(
                Remote("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
            ),
            folders=("cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar10", "CIFAR10", "cifar10_train.parquet"),
            copy="cifar-10-python.tar.gz, its unpacked folder, or Parquet files",
        ),
        Known(
            name="cifar100",
            shape=(32, 32, 3),
            labels=None,
            classes=100,
            train=50_000,
            test=10_000,
            mean=CIFAR_STATISTICS[0],
            std=CIFAR_STATISTICS[1],
            augment="crop-flip",
            licence=CIFAR_LICENCE,
            hub="uoft-cs/cifar100",
            remotes=(
                Remote("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
            ),
            folders=("cifar-100-python", "cifar-100-python.tar.gz", "cifar100", "CIFAR100", "cifar100_train.parquet"),
            copy="cifar-100-python.tar.gz, its unpacked folder, or Parquet files",
        ),
        Known(
            name="cinic10",
            shape=(32, 32, 3),
            labels=TEN_THINGS,
            classes=10,
            train=90_000,
            test=90_000,
            mean=(0.4789, 0.4723, 0.4305),
            std=(0.2421, 0.2383, 0.2587),
            augment="crop-flip",
            licence="MIT; its images under the terms of CIFAR-10 and ImageNet (non-commercial research); cite Darlow "
            "et al., arXiv:1810.03505",
            hub="flwrlabs/cinic10",
            remotes=(
                Remote(
                    "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
                    "6ee4d0c996905fe93221de577967a372",
                ),
            ),
            folders=("CINIC-10", "cinic-10", "cinic10", "CINIC-10.tar.gz", "cinic10_train.parquet"),
            copy="CINIC-10.tar.gz, its unpacked folder, or Parquet files",
        ),
        Known(
            name="fashion",
            shape=(28, 28, 1),
            labels=CLOTHES,
            classes=10,
            train=60_000,
            test=10_000,
            mean=(0.1307,),
            std=(0.3081,),
            augment="none",
            licence="MIT; cite Xiao, Rasul and Vollgraf, Fashion-MNIST, arXiv:1708.07747",
            hub="zalando-datasets/fashion_mnist",
            remotes=_mnist_like(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                (
                    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "25c81989df183df01b3e8a0aad5dffbe",
                    "bef4ecab320f06d8554ea6380940ec79",
                    "bb300cfdad3c16e7a12a480ee83cd310",
                ),
            ),
            folders=("fashion-mnist", "FashionMNIST/raw", "fashion", "fashion_train.parquet"),
            copy="the four idx files (Debian: apt install dataset-fashion-mnist), or Parquet files",
        ),
        Known(
            name="mnist",
            shape=(28, 28, 1),
            labels=DIGITS,
            classes=10,
            train=60_000,
            test=10_000,
            mean=(0.1307,),
            std=(0.3081,),
            augment="none",
            licence="CC BY-SA 3.0; cite LeCun, Cortes and Burges, The MNIST database of handwritten digits",
            hub="ylecun/mnist",
            remotes=_mnist_like(
                "https://ossci-datasets.s3.amazonaws.com/mnist",
                (
                    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "d53e105ee54ea40749a09fcbcd1e9432",
                    "9fb629c4189551a2d022fa330f9573f3",
                    "ec29112dd5afa0611ce80d1b7f02629c",
                ),
            ),
            folders=("mnist", "MNIST/raw", "mnist_train.parquet"),
            copy="the four idx files, or Parquet files",
        ),
        Known(
            name="femnist",
            shape=(28, 28, 1),
            labels=DIGITS + tuple(string.ascii_uppercase) + tuple(string.ascii_lowercase),
            classes=62,
            train=814_277,
            test=None,
            mean=None,
            std=None,
            augment="none",
            licence="BSD 2-clause (LEAF), from NIST Special Database 19; cite Caldas et al., LEAF, arXiv:1812.01097",
            hub="flwrlabs/femnist",
            folders=("femnist", "femnist_train.parquet"),
            copy="the hub's Parquet files",
        ),
    )
}
