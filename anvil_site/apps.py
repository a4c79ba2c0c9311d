from django.apps import AppConfig
from django.contrib.admin import apps as admin_apps


class AnvilSiteConfig(AppConfig):
    name = "anvil_site"
    default = True

    def ready(self) -> None:
        from anvil_site import checks  # noqa: F401  # registers them


class ConsoleAdminConfig(admin_apps.AdminConfig):
    """Django's admin with the console's site in the place of the stock one."""

    default = False
    default_site = "anvil_site.console.ConsoleSite"
