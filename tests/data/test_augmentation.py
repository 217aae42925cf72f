"""Augmentation: what each changes, that its random numbers are addressed, and that only training sees it."""

import numpy as np
import torch
from torch import nn

import mmfl
from conftest import refusals, refused, toy_task
from mmfl import Federation, Task
from mmfl.data import from_arrays
from mmfl.data.augmentation import Crop, Flip, Noise, PerExample, Random
from mmfl.engine import Simulation
from mmfl.engine.batches import Batches
from mmfl.engine.device_data import DeviceData
from mmfl.engine.jobs import Jobs

IMAGES = torch.arange(3 * 2 * 5 * 4.0).view(3, 2, 5, 4) + 1
DATA = from_arrays(torch.rand(80, 1, 6, 6, generator=torch.Generator().manual_seed(0)), np.arange(80) % 3)


def keys(number: int) -> Random:
    return Random(torch.arange(number))


def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 3))


def test_random_numbers_have_their_distributions():
    random = keys(20000)
    uniform, normal, integers = random.uniform(2), random.normal(2), random.integers(-1, 3)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(float(uniform.mean()) - 0.5) < 0.01
    assert abs(float(normal.mean())) < 0.02
    assert abs(float(normal.std()) - 1) < 0.02
    assert np.abs(np.bincount(integers + 1) / 20000 - 0.25).max() < 0.02
    assert not torch.equal(random.uniform(2), uniform), "each call draws anew"
    assert torch.equal(keys(20000).uniform(2), uniform)


def test_a_crop_is_a_window_of_the_padded_image():
    padded = nn.functional.pad(IMAGES, [2] * 4, value=-1.0)
    windows = {(r, c): padded[:, :, r : r + 5, c : c + 4] for r in range(5) for c in range(5)}
    seen = set()
    for n in range(40):
        cropped = Crop(padding=2, fill=-1.0)(IMAGES, Random(torch.arange(3) + 10 * n))
        for image in range(3):
            seen |= {place for place, window in windows.items() if torch.equal(window[image], cropped[image])}
    assert seen == set(windows)


def test_a_flip_mirrors_its_share_of_the_images():
    images = IMAGES[:1].expand(1000, -1, -1, -1)
    for flip, mirrored in ((Flip(), images.flip(-1)), (Flip(0.5, vertical=True), images.flip(-2))):
        changed = flip(images, keys(1000))
        is_mirrored = (changed == mirrored).flatten(1).all(1)
        assert (is_mirrored | (changed == images).flatten(1).all(1)).all()
        assert 400 < int(is_mirrored.sum()) < 600
    assert torch.equal(Flip(0.0)(IMAGES, keys(3)), IMAGES)


def test_noise_has_its_scale_and_changes_one_part_of_a_structure():
    x = {"image": torch.zeros(500, 20), "other": torch.ones(500)}
    changed = Noise(0.5, part="image")(x, keys(500))
    assert abs(float(changed["image"].std()) - 0.5) < 0.02
    assert changed["other"] is x["other"]
    assert (x["image"] == 0).all()
    first, second = Noise(0.5, part=1)((x["other"], x["image"]), keys(500))
    assert torch.equal(second, changed["image"])
    assert first is x["other"]


def draws(image: torch.Tensor) -> torch.Tensor:
    """A transform as torchvision's are."""
    return image + torch.rand(1)


def test_a_transform_of_one_example_draws_from_a_generator_of_its_own():
    state = torch.get_rng_state()
    together = PerExample(draws)(IMAGES, keys(3))
    assert torch.equal(torch.get_rng_state(), state)
    alone = torch.cat([PerExample(draws)(IMAGES[n : n + 1], Random(torch.tensor([n]))) for n in range(3)])
    assert torch.equal(together, alone)
    assert len((together - IMAGES).flatten(1)[:, 0].unique()) == 3


ALL = (Crop(2), Flip(), Noise())


def jobs_of(clients, augment=ALL, round=1, **options) -> Batches:
    task = Task("t", model, DATA, batch_size=4, epochs=2, augment=list(augment), **options)
    federation, engine = Federation([task], 6), Simulation("cpu")
    weights = engine.initial(federation, 0, seed=0)
    training = mmfl.engine.Training(federation, 0, weights, np.array(clients), round, 0, mmfl.local.PlainSGD())
    return Batches(Jobs.of([training]), DeviceData(torch.device("cpu")))


def test_an_example_is_changed_in_the_same_way_whoever_else_trains():
    """Bit for bit the same in a cohort and alone, and other numbers at every step and in every round."""
    cohort, alone = jobs_of([0, 3, 5]), [jobs_of([client]) for client in (0, 3, 5)]
    batches = list(cohort.cohorts())
    for job, one in enumerate(alone):
        for batch, (x, _), (own, _) in zip(batches, one.of_job(0), cohort.of_job(job), strict=True):
            assert torch.equal(batch.x[job, : len(x)], x)
            assert torch.equal(own, x)
    recorded = next(cohort.gather([(0, 3)], (5, 7)))
    assert torch.equal(recorded.x[:3, :4], batches[0].x)
    plain = jobs_of([0], augment=[Noise(1.0)]).of_job(0)
    bare, later = jobs_of([0], augment=[]).of_job(0), jobs_of([0], augment=[Noise(1.0)], round=2).of_job(0)
    noise = [x - y for (x, _), (y, _) in zip(plain, bare, strict=True)]
    assert not torch.equal(noise[0][0], noise[0][1])
    assert not torch.equal(noise[0], noise[1])
    assert not torch.equal(noise[0], noise[1 + len(noise) // 2])
    assert not torch.equal(next(later)[0], next(jobs_of([0], augment=[Noise(1.0)]).of_job(0))[0])


def test_engines_agree_and_only_training_sees_it():
    def train(mode, **options):
        federation = Federation([Task("t", model, DATA, lr=0.1, **options)], 5)
        return mmfl.train(federation, "full", rounds=3, engine=mode)

    one, other = (train(mode, augment=Noise(2.0), batch_size=4) for mode in ("vectorised", "sequential"))
    torch.testing.assert_close(one.weights[0], other.weights[0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(one.weights[0], train("sequential", batch_size=4).weights[0], atol=1e-3)
    frozen = [
        train("sequential", augment=augment, lr_steps=lambda step, steps: 0.0).loss for augment in (None, Noise())
    ]
    assert frozen[0].equals(frozen[1]), "the same weights are tested on the same examples"


def by_chance(x, random):
    return x + torch.rand_like(x)


def centred(x, random):
    return x - x.mean(0)


def two_inputs(**options):
    class Sum(nn.Linear):
        def forward(self, a, b):
            return super().forward(a + b)

    x = np.zeros((60, 3))
    return toy_task(data=from_arrays({"a": x, "b": x}, np.arange(60) % 4), model=lambda: Sum(3, 4), **options)


def in_place(x, random):
    return x.add_(1)


@refusals(
    (lambda: Crop(0), "'crop'", "padding is 0", "at least 1"),
    (lambda: Flip(1.5), "'flip'", "probability is 1.5", "[0, 1]"),
    (lambda: Noise(-1), "'noise'", "scale is -1", "positive"),
    (lambda: toy_task(augment="flip"), "'toy'", "augment is 'flip'", "a function of"),
    (lambda: toy_task(augment=[Noise(), 3]), "'toy'", "augment", "a list of them"),
    (
        lambda: toy_task(augment=Flip()).check(),
        "'toy'",
        "augment fails on inputs of shape (3, 3)",
        "no images",
        "part=",
    ),
    (lambda: toy_task(augment=Noise(part="image")).check(), "'toy'", "augment fails", "part is 'image'", "one tensor"),
    (lambda: two_inputs(augment=Noise(part="c")).check(), "'toy'", "part is 'c'", "one of: 'a', 'b'"),
    (lambda: toy_task(augment=lambda x, random: x.double()).check(), "gives float64 for inputs of float32", "kind"),
    (lambda: toy_task(augment=lambda x, random: x[:, :2]).check(), "gives (3, 2) for inputs (3, 3)", "same shapes"),
    (lambda: toy_task(augment=by_chance).check(), "'toy'", "by chance", "second argument"),
    (lambda: toy_task(augment=centred).check(), "'toy'", "the others of its batch"),
    (lambda: toy_task(augment=in_place).check(), "'toy'", "in place"),
)
def test_an_augmentation_that_cannot_be_used_is_refused(make, words):
    with refused(*words):
        make()


def test_tasks_with_other_augmentations_do_not_share_a_cohort():
    engine, scales = Simulation("cpu"), {"a": 1.0, "b": 0.1, "c": 1.0}
    made = [engine.architecture(Task(name, model, DATA, augment=[Noise(scale)])) for name, scale in scales.items()]
    assert made[0] is made[2] is not made[1]
