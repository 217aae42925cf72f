"""What optimisers and schedules of local steps refuse, in Python and in a configuration."""

import pytest

import mmfl
from mmfl.federation.optimisers import SGD, Adam, AdamW
from mmfl.federation.schedules import Cosine, WarmUp
from mmfl.runs import config


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SGD(momentum=1.0), "optimiser SGD: momentum is 1.0; expected a number of at least 0 and below 1."),
        (lambda: SGD(nesterov=True), "optimiser SGD: momentum is 0.0; expected a momentum above 0"),
        (lambda: SGD(weight_decay=-0.1), "optimiser SGD: weight_decay is -0.1; expected a number of at least 0."),
        (lambda: Adam(beta2="x"), "optimiser Adam: beta2 is 'x'; expected"),
        (lambda: Adam(eps=0), "optimiser Adam: eps is 0; expected a positive number."),
        (lambda: AdamW(clip_norm=0), "optimiser AdamW: clip_norm is 0; expected a positive number."),
        (lambda: SGD(clip_value=-1), "optimiser SGD: clip_value is -1; expected a positive number."),
        (lambda: WarmUp(0), "schedule WarmUp: steps is 0; expected"),
        (lambda: Cosine(2), "schedule Cosine: least is 2; expected a number from 0 to 1."),
        (lambda: Cosine(warm_up=-1), "schedule Cosine: warm_up is -1; expected"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, says):
    with pytest.raises(mmfl.UserError) as error:
        make()
    assert says in str(error.value)


def linear_task(**options):
    return mmfl.Task("digits", mmfl.models.LogisticRegression, mmfl.data.digits(), **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"optimiser": "adam"}, "task 'digits': optimiser is 'adam'; expected an optimiser such as"),
        ({"lr_steps": 0.1}, "task 'digits': lr_steps is 0.1; expected a function of (step, steps)."),
        ({"optimiser_state": "clients"}, "task 'digits': unknown optimiser_state 'clients': did you mean 'client'?"),
        ({"optimiser_state": None}, "task 'digits': unknown optimiser_state 'None': expected one of: client, training"),
    ],
)
def test_a_task_refuses_what_is_no_optimiser_or_schedule(options, says):
    with pytest.raises(mmfl.UserError) as error:
        linear_task(**options)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (lambda step, steps: -step, "task 'digits': lr_steps gives -1.0 at step 1 of 1; expected a number of at least"),
        (lambda step: 1.0, "task 'digits': lr_steps fails with 1 steps: "),
    ],
)
def test_a_schedule_with_invalid_values_is_refused_before_training(schedule, says):
    federation = mmfl.Federation([linear_task(lr_steps=schedule)], clients=3)
    with pytest.raises(mmfl.UserError) as error:
        mmfl.train(federation, "full", rounds=1)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("tasks.digits.optimiser=adma", "unknown optimiser 'adma': did you mean 'adam'?"),
        ("tasks.digits.optimiser={name='sgd',momentun=0.9}", "momentun"),
        ("tasks.digits.lr_steps=cosin", "unknown schedule 'cosin': did you mean 'cosine'?"),
        ("tasks.digits.optimiser_state=round", "optimiser_state"),
    ],
)
def test_a_configuration_that_names_no_optimiser_or_schedule_is_refused(setting, says):
    with pytest.raises(mmfl.UserError) as error:
        config.read("demo", [setting]).experiment()
    assert says in str(error.value)


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
