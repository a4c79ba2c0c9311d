from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig


class AnvilSiteConfig(AppConfig):
    name = "anvil_site"


class ConsoleAdminConfig(AdminConfig):
    """Django's admin with the console's site in the place of the stock one."""

    default_site = "anvil_site.console.ConsoleSite"
