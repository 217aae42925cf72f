"""What optimisers and schedules of local steps refuse, in Python and in a configuration."""

import mmfl
from conftest import refusals, refused, toy_task
from mmfl.federation.optimisers import SGD, Adam, AdamW
from mmfl.federation.schedules import Cosine, LinearWarmUp
from mmfl.runs import config


def train(lr_steps):
    mmfl.train(mmfl.Federation([toy_task(lr_steps=lr_steps)], clients=3), "full", rounds=1)


@refusals(
    (lambda: SGD(momentum=1.0), "optimiser SGD: momentum is 1.0; expected a number of at least 0 and below 1."),
    (lambda: SGD(nesterov=True), "optimiser SGD: momentum is 0.0; expected a momentum above 0"),
    (lambda: SGD(weight_decay=-0.1), "optimiser SGD: weight_decay is -0.1; expected a number of at least 0."),
    (lambda: Adam(beta2="x"), "optimiser Adam: beta2 is 'x'; expected"),
    (lambda: Adam(eps=0), "optimiser Adam: eps is 0; expected a positive number."),
    (lambda: AdamW(clip_norm=0), "optimiser AdamW: clip_norm is 0; expected a positive number."),
    (lambda: SGD(clip_value=-1), "optimiser SGD: clip_value is -1; expected a positive number."),
    (lambda: LinearWarmUp(0), "schedule LinearWarmUp: steps is 0; expected"),
    (lambda: Cosine(2), "schedule Cosine: least is 2; expected a number from 0 to 1."),
    (lambda: Cosine(warm_up=-1), "schedule Cosine: warm_up is -1; expected"),
    (lambda: toy_task(optimiser="adam"), "task 'toy': optimiser is 'adam'; expected an optimiser such as"),
    (lambda: toy_task(optimiser_state="clients"), "unknown optimiser_state 'clients': did you mean 'client'?"),
    (lambda: toy_task(optimiser_state=None), "unknown optimiser_state 'None': expected one of: client, training"),
    (lambda: toy_task(lr_steps=0.1), "task 'toy': lr_steps is 0.1; expected a function of (step, steps)."),
    (lambda: train(lambda step, steps: -step), "task 'toy': lr_steps gives -1.0 at step 1 of 1; expected a number of"),
    (lambda: train(lambda step: 1.0), "task 'toy': lr_steps fails with 1 steps: "),
)
def test_settings_that_make_no_sense_are_refused(make, words):
    with refused(*words):
        make()


def test_a_configuration_names_optimiser_and_schedule():
    settings = [
        "tasks.digits.optimiser={name='adamw',clip_norm=1.0}",
        "tasks.digits.lr_steps={name='cosine',warm_up=2}",
        "tasks.digits.optimiser_state=client",
    ]
    task = config.read("demo", settings).experiment().federation_of(0).tasks[0]
    assert task.optimiser == AdamW(clip_norm=1.0)
    assert task.lr_steps == Cosine(warm_up=2)
    assert task.keeps_optimiser_state
