from django.apps import AppConfig
from django.db.models.signals import post_migrate


class RoutingConfig(AppConfig):
    name = "routing"

    def ready(self) -> None:
        from routing.permissions import grant

        post_migrate.connect(grant, dispatch_uid="routing.permissions.grant")
