"""MLflow: an experiment with a run for each replica, on a server or in a local database."""

import time
from collections.abc import Mapping

from mmfl.trackers.logged import Parameters
from mmfl.trackers.tracker import Tracker

_PARAMETERS_AT_ONCE = 100  # MLflow takes no more


class MLflow(Tracker[str]):
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
        self.found: dict[str, int] = {}  # the last round of each run that was there before, by id

    def start(self, run: str, parameters: Parameters) -> str:
        """Goes on with the run of that name, or creates it, and the experiment too."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self.client = MlflowClient(self.uri)
        if run in self.known and self._find(self.known[run]):
            return self.known[run]
        experiment = self.client.get_experiment_by_name(self.experiment)
        number = experiment.experiment_id if experiment else self.client.create_experiment(self.experiment)
        made = self.client.create_run(number, run_name=run).info.run_id
        params = [Param(key, str(value)) for key, value in parameters.items()]
        for n in range(0, len(params), _PARAMETERS_AT_ONCE):
            self.client.log_batch(made, params=params[n : n + _PARAMETERS_AT_ONCE])
        self.known[run] = made
        return str(made)

    def log(self, run: str, round: int, values: Mapping[str, float]) -> None:
        """Logs a round that is not there yet, all its numbers or none."""
        from mlflow.entities import Metric

        if round > self.found.get(run, 0):
            now = int(1000 * time.time())
            self.client.log_batch(run, metrics=[Metric(name, value, now, round) for name, value in values.items()])

    def finish(self, run: str, done: bool) -> None:
        """Says how it ended."""
        self.client.set_terminated(run, "FINISHED" if done else "KILLED")

    def _find(self, id: str) -> bool:
        """Whether the run of this id is still there; if so it is running again."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.update_run(id, status="RUNNING")
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return False
            raise
        self.found[id] = max((metric.step for metric in self.client.get_metric_history(id, "seconds")), default=0)
        return True
