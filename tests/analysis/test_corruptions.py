"""The corruptions of CIFAR-10-C against their definitions, written here another way."""

from io import BytesIO

import numpy as np
import pytest
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image
from scipy import ndimage

import gmmvit.data
from gmmvit.analysis import corruptions
from gmmvit.analysis.corruptions import CORRUPTIONS, SEVERITIES, corrupted

STEADY = {*CORRUPTIONS} - {
    "glass_blur",
    "motion_blur",
    "frost",
    "elastic_transform",
}  # their strengths do not only rise


@pytest.fixture(scope="module")
def images():
    return gmmvit.data.load("cifar10-mini")["test"].images[:24]


def random():
    return np.random.default_rng(0)


def test_there_are_fifteen_and_severity_is_distortion(images):
    assert len(CORRUPTIONS) == 15
    for kind in CORRUPTIONS:
        found = [corrupted(images, kind, severity) for severity in SEVERITIES]
        assert all(each.dtype == np.uint8 and each.shape == images.shape for each in found)
        distortion = [np.abs(each.astype(float) - images).mean() for each in found]
        assert distortion[0] > 0.5 and (kind not in STEADY or (np.diff(distortion) > 0).all()), (kind, distortion)


def test_draws_belong_to_seed_kind_and_severity(images):
    first = corrupted(images[:4], "impulse_noise", 3)
    np.random.seed(7)
    assert np.array_equal(first, corrupted(images[:4], "impulse_noise", 3))
    assert not np.array_equal(first, corrupted(images[:4], "impulse_noise", 3, seed=1))


def test_an_unknown_corruption_or_severity_is_a_sentence(images):
    with pytest.raises(ValueError, match="nearest is 'frost'"):
        corrupted(images, "frosst", 1)
    with pytest.raises(ValueError, match=r"severity: expected one of \(1, 2, 3, 4, 5\), got 0"):
        corrupted(images, "frost", 0)


def test_noise_has_its_strength():
    grey = np.full((8, 32, 32, 3), 0.5)
    assert corruptions.gaussian_noise(grey, 0.08, random()).std() == pytest.approx(0.08, rel=0.03)
    shot = corruptions.shot_noise(grey, 50, random())
    assert shot.mean() == pytest.approx(0.5, rel=0.02) and shot.var() == pytest.approx(0.5 / 50, rel=0.05)
    salted = corruptions.impulse_noise(grey, 0.07, random())
    assert (salted == 0).mean() == pytest.approx(0.035, rel=0.1) and (salted == 1).mean() == pytest.approx(
        0.035, rel=0.1
    )


def test_blurs_spread_a_point_as_they_say():
    point = np.zeros((1, 33, 33, 3))
    point[0, 16, 16] = 1
    disk = corruptions.defocus_blur(point, (1, 0.1), random())[0, ..., 0]  # an edge that is hardly softened
    assert disk[[16, 15, 17, 16, 16], [16, 16, 16, 15, 17]] == pytest.approx(0.2) and disk.sum() == pytest.approx(1)
    line = corruptions._moved(point, (6, 2), np.array([0.0]))[0, ..., 0]
    tail = np.exp(-(np.arange(13) ** 2) / (2 * 2.0**2))
    np.testing.assert_allclose(line[16, 4:17][::-1], tail / tail.sum(), atol=1e-12)
    turned = corruptions._moved(point, (6, 2), np.array([90.0]))[0, ..., 0]
    np.testing.assert_allclose(turned, line.T)
    even = np.full((2, 32, 32, 3), 0.3)
    for kind in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "elastic_transform", "pixelate"):
        assert np.abs(corrupted(np.uint8(255 * even), kind, 5).astype(float) - 76).max() <= 1, kind


def test_a_magnified_image_is_scipys(images):
    some = images[:2] / 255
    for factor in (1.05, 1.26, 1.75, 2.25):
        side = int(np.ceil(32 / factor))
        cut = (32 - side) // 2
        each = ndimage.zoom(some[:, cut : cut + side, cut : cut + side], (1, factor, factor, 1), order=1)
        cut = (each.shape[1] - 32) // 2
        np.testing.assert_allclose(
            corruptions._magnified(some, factor), each[:, cut : cut + 32, cut : cut + 32], atol=1e-12
        )


def test_glass_takes_values_of_neighbours_and_leaves_the_first_row_and_column():
    image = np.arange(32 * 32, dtype=float).reshape(1, 32, 32, 1).repeat(3, 3) / 1024
    found = corruptions.glass_blur(image, (1e-3, 1), random())[0, ..., 0]
    assert np.array_equal(found[:2], image[0, :2, :, 0]) and np.array_equal(found[:, :2], image[0, :, :2, 0])
    row, column = np.divmod(np.rint(1024 * found[2:, 2:]).astype(int), 32)
    steps = np.stack([row - np.arange(2, 32)[:, None], column - np.arange(2, 32)])
    assert steps.max() == 0 and steps.min() == -1 and abs(steps.mean() + 0.5) < 0.05


def test_fog_keeps_the_brightest_and_clouds_fill_their_range(images):
    clouds = corruptions._plasma((3, 32), 2.0, random())
    assert clouds.min((1, 2)).tolist() == [0, 0, 0] and clouds.max((1, 2)).tolist() == [1, 1, 1]
    some = images[:3] / 255
    found = corruptions.fog(some, (1.5, 1.75), random())
    assert (found.max((1, 2, 3)) <= some.max((1, 2, 3)) + 1e-9).all()
    assert found[0, ..., 0].std() != pytest.approx(0)


def test_colours_are_changed_as_in_other_colour_spaces(images):
    some = images[:4] / 255
    hsv = rgb_to_hsv(some)
    hsv[..., 2] = np.clip(hsv[..., 2] + 0.3, 0, 1)
    np.testing.assert_allclose(corruptions.brightness(some, 0.3, random()), hsv_to_rgb(hsv), atol=1e-12)
    black = np.zeros((1, 2, 2, 3))
    assert corruptions.brightness(black, 0.1, random()) == pytest.approx(0.1)
    faded = corruptions.contrast(some, 0.15, random())
    np.testing.assert_allclose(faded.mean((1, 2)), some.mean((1, 2)))
    np.testing.assert_allclose(faded.std((1, 2)), 0.15 * some.std((1, 2)))


def test_pixels_and_jpeg_are_pillows(images):
    for image, coarse, packed in zip(
        images[:3], corrupted(images[:3], "pixelate", 5), corrupted(images[:3], "jpeg_compression", 5), strict=True
    ):
        picture = Image.fromarray(image)
        assert np.array_equal(
            coarse, picture.resize((20, 20), Image.Resampling.BOX).resize((32, 32), Image.Resampling.BOX)
        )
        picture.save(file := BytesIO(), "JPEG", quality=40)
        assert np.array_equal(packed, Image.open(file))


def test_elastic_moves_the_corners_where_it_says_and_reads_between_pixels_as_scipy_does(images):
    some = images[:2] / 255
    places = random().uniform(-3, 34, (2, 32, 32, 2))
    for edge, mode in ((True, "reflect"), (False, "mirror")):
        found = corruptions._looked_up(some, places.reshape(2, -1, 2), mirror_edge=edge)
        for image, at, each in zip(some, places, found, strict=True):
            for colour in range(3):
                wanted = ndimage.map_coordinates(image[..., colour], [at[..., 1], at[..., 0]], order=1, mode=mode)
                np.testing.assert_allclose(each[..., colour], wanted, atol=1e-9)
    still = corruptions.elastic_transform(some, (0, 0, 0), random())
    np.testing.assert_allclose(still, some, atol=1e-9)


def test_weather_covers_more_than_it_leaves_dark(images):
    some = images[:8] / 255
    for kind in ("snow", "frost"):
        assert corrupted(images[:8], kind, 5).mean() > 255 * some.mean() + 10, kind
    ice = corruptions.frost(np.zeros((64, 32, 32, 3)), (0, 1), random())
    assert ice.mean() == pytest.approx(corruptions.FROST.mean(), abs=0.05)
    within = ice.mean(-1).std((1, 2)).mean()
    assert 0.5 * corruptions.FROST_SD < within < corruptions.FROST_SD
