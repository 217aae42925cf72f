"""Generated faces: drawings with nine independent binary attributes, a substitute for CelebA."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mmfl.checks import check, check_memory, check_whole, is_whole
from mmfl.data.dataset import Dataset, from_arrays
from mmfl.errors import UserError, nearest
from mmfl.randomness import Purpose, generator

ATTRIBUTES = (
    "Smiling",
    "Eyeglasses",
    "Wearing_Hat",
    "Mustache",
    "Bangs",
    "Mouth_Slightly_Open",
    "Wearing_Earrings",
    "Blond_Hair",
    "Rosy_Cheeks",
)
"""The attributes of a picture, named as in CelebA."""

Floats = NDArray[np.float64]


def faces(
    attribute: str | int = "Smiling",
    people: int = 96,
    images: int = 30,
    side: int = 28,
    test_share: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Drawings of faces [3, side, side] as bytes, with label 1 if the picture has the attribute.

    `attribute` is one of `ATTRIBUTES` or its number. Each person is an owner with `images` pictures, which share
    colours and proportions. The probability of each attribute differs from person to person, so labels are skewed by
    owner; the attributes are independent of each other. All attributes share one tensor of pictures.
    """
    if isinstance(attribute, str) and attribute not in ATTRIBUTES:
        raise UserError(f"data 'faces': unknown attribute '{attribute}': {nearest(attribute, ATTRIBUTES)}")
    number = ATTRIBUTES.index(attribute) if isinstance(attribute, str) else attribute
    known = is_whole(number, 0) and number < len(ATTRIBUTES)
    check(known, "data 'faces'", "attribute", number, f"a name or 0 to {len(ATTRIBUTES) - 1}")
    for name, value, minimum in (("people", people, 1), ("images", images, 2), ("side", side, 8)):
        check_whole("data 'faces'", name, value, minimum)
    check_memory(f"data 'faces' of {people} people", 3.0 * people * images * side**2)
    pictures = _draw_faces(people, images, side, test_share, seed)
    name = f"generated faces, {ATTRIBUTES[number]}"
    return replace(pictures, name=name, y=pictures.y[:, number].clone(), y_test=pictures.y_test[:, number].clone())


@lru_cache(maxsize=2)
def _draw_faces(people: int, images: int, side: int, test_share: float, seed: int) -> Dataset:
    """The pictures with all attributes as targets, [rows, attributes]."""
    rng = generator(seed, Purpose.DATA)
    x = np.empty((people, images, 3, side, side), dtype=np.uint8)
    shows = np.empty((people, images, len(ATTRIBUTES)), dtype=bool)
    for person in range(people):
        shows[person] = rng.random((images, len(ATTRIBUTES))) < rng.uniform(0.2, 0.8, len(ATTRIBUTES))
        x[person] = _portraits(shows[person], side, rng)
    owner = np.repeat(np.arange(people), images)
    flat = x.reshape(-1, 3, side, side), shows.reshape(len(owner), -1)
    return from_arrays(*flat, owner, test_share=test_share, name="generated faces", seed=seed)


class _Canvas:
    """Pictures of one person [images, 3, side, side], painted shape by shape from the back to the front.

    A shape is given by the distance from its edge, positive inside, as a function of the coordinates u (right) and v
    (down), in which the face fills the unit circle. Every picture has a random pose.
    """

    def __init__(self, images: int, side: int, background: Floats, rng: np.random.Generator):
        v, u = np.meshgrid(*2 * [np.linspace(-1.2, 1.2, side)], indexing="ij")
        turn, scale, right, down = (rng.normal(m, s, (images, 1, 1)) for m, s in _POSE)
        self.u = (u * np.cos(turn) - v * np.sin(turn)) / scale - right
        self.v = (u * np.sin(turn) + v * np.cos(turn)) / scale - down
        self.pixels = np.broadcast_to(background[..., None, None], (images, 3, side, side)).copy()
        self.sharpness = side / 2.4

    def paint(self, shape: Floats, colour: Floats, opacity: Floats | float = 1.0) -> None:
        """Covers the shape with a colour, [3] or [images, 3]; `opacity` is one number or one per picture."""
        cover = np.clip(0.5 + shape * self.sharpness, 0, 1) * np.reshape(opacity, (-1, 1, 1))
        self.pixels += cover[:, None] * (colour[..., None, None] - self.pixels)

    def ellipse(self, u: Floats | float, v: float, width: Floats | float, height: float) -> Floats:
        """An ellipse around (u, v)."""
        radius = np.sqrt(((self.u - u) / width) ** 2 + ((self.v - v) / height) ** 2)
        return np.asarray((1 - radius) * np.minimum(width, height))


_POSE = ((0, 0.08), (1, 0.05), (0, 0.04), (0, 0.04))
_DARK, _WHITE, _RED = (np.array(c) for c in ((0.1, 0.08, 0.08), (0.95, 0.95, 0.95), (0.75, 0.2, 0.25)))


def _portraits(shows: NDArray[np.bool_], side: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Pictures of a new person, bytes [images, 3, side, side]; `shows` [images, attributes]."""
    images = len(shows)

    def near(colour: Floats, spread: float) -> Floats:
        return np.clip(colour + rng.normal(0, spread, (images, 3)), 0, 1)

    shown = {name: shows[:, n] * rng.uniform(0.5, 1, images) for n, name in enumerate(ATTRIBUTES)}
    skin = np.array([0.9, 0.7, 0.55]) * rng.uniform(0.5, 1.05)
    dark_hair = np.array([0.35, 0.22, 0.15]) * rng.uniform(0.3, 1.3)
    blond = np.array([0.9, 0.75, 0.4])
    hair = near(dark_hair + shown["Blond_Hair"][:, None] * (blond - dark_hair), 0.04)
    width, apart, brows = rng.uniform(0.52, 0.66), rng.uniform(0.2, 0.28), rng.uniform(0.03, 0.06)

    canvas = _Canvas(images, side, near(rng.uniform(0.2, 0.8, 3), 0.08), rng)
    u, v = canvas.u, canvas.v
    face = canvas.ellipse(0, 0.1, width, 0.78)
    canvas.paint(canvas.ellipse(0, -0.12, width + 0.18, 0.86), hair)
    canvas.paint(face, near(skin, 0.03))
    for sign in (-1, 1):
        canvas.paint(canvas.ellipse(sign * (width - 0.2), 0.3, 0.16, 0.12), _RED, 0.6 * shown["Rosy_Cheeks"])
        canvas.paint(canvas.ellipse(sign * (width + 0.04), 0.38, 0.07, 0.1), _WHITE, shown["Wearing_Earrings"])
        canvas.paint(canvas.ellipse(sign * apart, -0.02, 0.13, 0.07), _WHITE)
        canvas.paint(canvas.ellipse(sign * apart, -0.02, 0.06, 0.06), _DARK)
        canvas.paint(canvas.ellipse(sign * apart, -0.2, 0.15, brows), dark_hair)
        rim = 0.03 - np.abs(canvas.ellipse(sign * apart, -0.02, 0.18, 0.15))
        canvas.paint(rim, _DARK, shown["Eyeglasses"])
    canvas.paint(np.minimum(0.03 - np.abs(v + 0.02), apart - 0.16 - np.abs(u)), _DARK, shown["Eyeglasses"])
    canvas.paint(canvas.ellipse(0, 0.18, 0.05, 0.12), 0.8 * skin)
    canvas.paint(canvas.ellipse(0, 0.36, 0.24, 0.06), dark_hair, shown["Mustache"])
    canvas.paint(canvas.ellipse(0, 0.56, 0.14, 0.09), _DARK, shown["Mouth_Slightly_Open"])
    curve = rng.normal(-0.04, 0.03, images) + 0.36 * shown["Smiling"]
    lips = 0.55 - curve[:, None, None] * ((u / 0.3) ** 2 - 0.5)
    canvas.paint(np.minimum(0.045 - np.abs(v - lips), 0.3 - np.abs(u)), _RED)
    canvas.paint(np.minimum(face + 0.05, -0.3 - v), hair, shown["Bangs"])
    brim = np.minimum(-0.52 - v, width + 0.25 - np.abs(u))
    canvas.paint(brim, near(rng.random(3), 0.25), shown["Wearing_Hat"])

    light = rng.uniform(0.75, 1.1, (images, 1, 1, 1)) + rng.normal(0, 0.15, (images, 1, 1, 1)) * u[:, None]
    lit = canvas.pixels * light + rng.normal(0, 0.06, canvas.pixels.shape)
    return (np.clip(lit, 0, 1) * 255).astype(np.uint8)
