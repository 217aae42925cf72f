"""MLflow: an experiment with a run for each replica, on a server or in a local database."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from mmfl.trackers.logged import Parameters
from mmfl.trackers.tracker import Tracker

_PARAMETERS_AT_ONCE = 100  # MLflow takes no more


@dataclass(frozen=True)
class MLflowRun:
    """A run by its id; rounds up to `logged` are in it already."""

    id: str
    logged: int = 0


class MLflow(Tracker[MLflowRun]):
    """A run for each replica, in the experiment of that name.

    `uri` says where to: a server or a database such as `sqlite:///mlflow.db`. By default it is MLflow's own choice,
    which `MLFLOW_TRACKING_URI` changes. A resumed run goes on where it was, by its id in `mlflow.json` of the run's
    directory; rounds that it has are not logged again.
    """

    name = "mlflow"
    module = "mlflow"

    def __init__(self, experiment: str | None = None, uri: str | None = None):
        super().__init__(experiment)
        self.uri = uri

    def start(self, run: str, parameters: Parameters) -> MLflowRun:
        """Goes on with the run of that name, or creates it, and the experiment too."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self.client = MlflowClient(self.uri)
        if found := self._found(self.known.get(run)):
            return found
        experiment = self.client.get_experiment_by_name(self.experiment)
        number = experiment.experiment_id if experiment else self.client.create_experiment(self.experiment)
        made = self.client.create_run(number, run_name=run).info.run_id
        params = [Param(key, str(value)) for key, value in parameters.items()]
        for n in range(0, len(params), _PARAMETERS_AT_ONCE):
            self.client.log_batch(made, params=params[n : n + _PARAMETERS_AT_ONCE])
        self.known[run] = made
        return MLflowRun(made)

    def log(self, run: MLflowRun, round: int, values: Mapping[str, float]) -> None:
        """Logs a round that is not there yet, all its numbers or none."""
        from mlflow.entities import Metric

        if round > run.logged:
            now = int(1000 * time.time())
            self.client.log_batch(run.id, metrics=[Metric(name, value, now, round) for name, value in values.items()])

    def finish(self, run: MLflowRun, done: bool) -> None:
        """Says how it ended."""
        self.client.set_terminated(run.id, "FINISHED" if done else "KILLED")

    def _found(self, id: str | None) -> MLflowRun | None:
        """The run of this id, running again; None where there is none, or no longer."""
        from mlflow.exceptions import MlflowException

        if id is None:
            return None
        try:
            self.client.update_run(id, status="RUNNING")
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise
        return MLflowRun(id, max((metric.step for metric in self.client.get_metric_history(id, "seconds")), default=0))
