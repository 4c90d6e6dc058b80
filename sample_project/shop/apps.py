"""The app's configuration."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """A small shop with things to do at certain times."""

    name = "shop"
    verbose_name = "Shop"
