"""The settings of development, which the tests use too: nothing in them is for tests but MIRROR, where it is played."""

import json
import os
from pathlib import Path

BASE = Path(__file__).parent
SECRET_KEY = "only for tests"
USE_TZ = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django_delayq",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
STATIC_URL = "/static/"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE / "development.sqlite3"}}
CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["PROJECT_REDIS"]}}
DELAYQ = {"PREFIX": "shop", "SYNC_AFTER_MIGRATE": True, **json.loads(os.environ.get("PROJECT_DELAYQ", "{}"))}
TASKS = {"default": {"BACKEND": "django_delayq.backend.DelayQBackend"}}
