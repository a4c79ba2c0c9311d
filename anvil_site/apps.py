from django.apps import AppConfig


class AnvilSiteConfig(AppConfig):
    name = "anvil_site"
