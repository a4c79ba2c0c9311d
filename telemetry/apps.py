from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    name = "telemetry"

    def ready(self) -> None:
        from routing.console import history
        from telemetry import process

        # Asked for at each reading: the evidence comes with the runtime, later than this.
        history.bind(process.history)
